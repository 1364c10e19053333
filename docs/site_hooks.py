"""Pages of the site that are made, not written: one for each method, from its card and settings."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File, Files

from softmask.learning.registry import METHODS
from softmask.learning.settings import range_text, settings_card, shown

SIGNATURES = re.compile(r"^### `([\w.]+)`\n.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    pages: list[Any] = [{"Overview": "methods/index.md"}]
    pages += [{METHODS.load(name).title: f"methods/{name}.md"} for name in METHODS.names()]
    config["nav"] = [*config["nav"], {"Methods": pages}]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, text in method_pages().items():
        files.append(File.generated(config, f"methods/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Whole docstrings in place of the signatures of the reference, which are there for readers of the file."""
    if page.file.src_uri != "reference.md":
        return markdown
    return SIGNATURES.sub(r"::: \1\n\n", markdown)


def method_pages() -> dict[str, str]:
    """Markdown by page name: the first line of a card is its heading, the rest stands as it is."""
    rows, pages = ["| name | in the paper | idea |", "|---|---|---|"], {}
    for name in METHODS.names():
        first, _, rest = METHODS.entry(name).card.partition("\n")
        title = METHODS.load(name).title
        rows.append(f"| [`{name}`]({name}.md) | {title} | {first} |")
        pages[name] = f"# {title}\n\n{first}\n{rest}\n\n{settings_table(name)}"
        pages[name] += f"Run it: `softmask run --method {name} --sequence D-5`\n"
    return {"index": "# Methods\n\n" + "\n".join(rows) + "\n", **pages}


def settings_table(name: str) -> str:
    rows = []
    for each in settings_card(METHODS.load(name).Settings):
        searched = "" if each.search is None else range_text(each.search)
        rows.append(f"| `{each.name}` | `{shown(each.default)}` | {searched} | {each.about} |")
    return "\n".join(["| setting | default | searched | |", "|---|---|---|---|", *rows]) + "\n\n" if rows else ""
