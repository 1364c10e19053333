"""Pages of the site that are made, not written: one for each method, from its card."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File, Files

from softmask.learning.catalogue import METHODS


def on_config(config: Any) -> Any:
    pages: list[Any] = [{"Overview": "methods/index.md"}]
    pages += [{METHODS.load(name).title: f"methods/{name}.md"} for name in METHODS.names()]
    config["nav"] = [*config["nav"], {"Methods": pages}]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, text in method_pages().items():
        files.append(File.generated(config, f"methods/{name}.md", content=text))
    return files


def method_pages() -> dict[str, str]:
    """Markdown by page name: the first line of a card is its heading, the rest stands as it is."""
    rows, pages = ["| name | in the paper | idea |", "|---|---|---|"], {}
    for name in METHODS.names():
        first, _, rest = METHODS.entry(name).card.partition("\n")
        title = METHODS.load(name).title
        rows.append(f"| [`{name}`]({name}.md) | {title} | {first} |")
        pages[name] = f"# {title}\n\n{first}\n{rest}\n\nRun it: `softmask run --method {name} --sequence D-5`\n"
    return {"index": "# Methods\n\n" + "\n".join(rows) + "\n", **pages}
