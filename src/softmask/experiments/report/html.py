"""A store as one self-contained HTML page without any link to another site."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote

import softmask
from softmask.errors import SoftmaskError
from softmask.experiments.analyses import ANALYSES
from softmask.experiments.analyses.accuracy import references
from softmask.experiments.analyses.reading import Reading
from softmask.experiments.analyses.table import Table
from softmask.experiments.report.charts import COLOURS, DASHES, FIRST, OTHERS, Chart, all_figures
from softmask.experiments.report.run_pages import LESS, run_data, runs_table
from softmask.experiments.report.tables import SUFFIXES, WRITERS, as_html

LIMIT = 8_000_000
"""Bytes: most mail servers accept this."""
LARGEST_COPY = 60_000
MANY_ROWS, MANY_CHARTS = 25, 4
SAID_ONCE = ("training", "changed", "seeds", "ranked over", "features")
SCRIPTS = ("tables.js", "charts.js", "maps.js", "runs.js")
WORDS = {"held": "held", "not held": "not-held", "no data": "no-data", "failed": "failed", "unfinished": "unfinished"}


@dataclass(frozen=True)
class Block:
    """A table by its analysis, or figures by their subject."""

    kind: str
    name: str
    heading: str = ""
    about: str = ""


def _table_of(name: str, heading: str) -> Block:
    return Block("table", name, heading)


def _figures_of(name: str, heading: str = "", about: str = "") -> Block:
    return Block("figures", name, heading, about)


Section = tuple[str, str, tuple[Block, ...]]
"""Title, first paragraph, contents."""
SECTIONS: tuple[Section, ...] = (
    (
        "Accuracy",
        "Accuracy of the final model over all tasks. Filled: these runs; hollow: the paper's number; dotted: chance.",
        (
            _figures_of("accuracy"),
            _table_of("accuracy-by-sequence", "By sequence"),
            _figures_of("so-far", "While tasks are learned", "A falling line is forgetting."),
            _table_of("differences", "Difference to SPG"),
            _table_of("ablation", "Ablations of SPG"),
            _table_of("identity", "Inconsistent numbers"),
        ),
    ),
    (
        "Transfer",
        "Forward transfer: gain of a task from the tasks before it, against a network of its own (ONE). "
        "Backward transfer: effect of later tasks on earlier ones; below zero it is forgetting.",
        (
            _table_of("forward-transfer", "Forward transfer"),
            _table_of("backward-transfer", "Backward transfer"),
            _figures_of("transfer", "Forward transfer, task by task"),
            _table_of("transfer-curve", "Forward transfer by task, with slopes"),
        ),
    ),
    (
        "Capacity",
        "Share of the network that later tasks cannot change, and the effect of cross-head importance.",
        (
            _figures_of("capacity"),
            _table_of("capacity", "Completely blocked parameters"),
            _table_of("cross-head", "Cross-head importance"),
        ),
    ),
    (
        "Mechanism",
        "Types of importance and of protection, pruning by importance, and the features on another dataset.",
        (
            _table_of("mechanism", "Importance by mechanism"),
            _table_of("pruning", "Pruning by importance"),
            _figures_of("representation", "Features for another dataset"),
            _table_of("representation", "Features for another dataset, in numbers"),
        ),
    ),
    (
        "Claims",
        "Every comparative claim of the paper, judged by these runs and by the paper's own tables.",
        (_table_of("claims", "Claims of the paper"),),
    ),
    (
        "Matrices",
        "Accuracy on each task (across) after each task (down). A column that darkens downwards is forgetting.",
        (_figures_of("matrix"),),
    ),
    (
        "Cost",
        "Time, memory and disk, measured on the machines of the runs.",
        (
            _figures_of("task-end"),
            _table_of("cost", "Cost of a run"),
            _table_of("network-size", "Learnable parameters"),
        ),
    ),
)


def make_report(
    reading: Reading, watch: Callable[[str], None] | None = None
) -> tuple[str, dict[str, Table], dict[str, list[Chart]]]:
    """The page, and the tables and figures in it."""
    tables: dict[str, Table] = {}
    for name, analysis in ANALYSES.items():
        if watch is not None:
            watch(name)
        tables[name] = analysis(reading.runs)
    figures = all_figures(reading.runs)
    return report_html(reading, tables, figures), tables, figures


def report_html(reading: Reading, tables: dict[str, Table], figures: dict[str, list[Chart]]) -> str:
    """The page; a store of very many runs shows each of them in less detail."""
    if not reading.runs:
        raise SoftmaskError(f"no run in {reading.root}: `softmask run` makes one, `softmask list runs` shows them")
    parts = _parts(reading, tables, figures)
    for detail in (0, *LESS):
        page = _page(reading, parts, detail)
        if len(page.encode()) < LIMIT:
            return page
    raise SoftmaskError(
        f"the report of {len(reading.runs)} runs would be larger than {LIMIT / 1e6:.0f} MB: divide the store"
    )


def _parts(reading: Reading, tables: dict[str, Table], figures: dict[str, list[Chart]]) -> dict[str, str]:
    """Everything but the pages of single runs."""
    sections = [_section(section, tables, figures, reading) for section in SECTIONS]
    shown = [(section, body) for section, body in zip(SECTIONS, sections, strict=True) if body]
    charts = {chart.name: chart.to_dict() for each in figures.values() for chart in each}
    links = "".join(f'<a href="#{title.lower()}">{title}</a>' for (title, _, _), _ in shown)
    return {
        "title": escape(f"softmask: {_name(reading)}"),
        "style": _colours() + _file("report.css"),
        "links": links + '<a href="#runs">Runs</a>',
        "heading": escape(f"Report: {_name(reading)}"),
        "summary": _summary(reading),
        "sections": "\n".join(body for _, body in shown),
        "runs": _runs(reading),
        "left_out": _left_out(reading, tables),
        "version": softmask.__version__,
        "palette": _json({"colours": len(COLOURS), "dashes": DASHES, "systems": FIRST + OTHERS}),
        "charts": _json(charts),
        "scripts": "\n".join(f"<script>\n{_file(name)}</script>" for name in SCRIPTS),
    }


def _page(reading: Reading, parts: dict[str, str], detail: int) -> str:
    everything = {run.path.name: run_data(run, detail) for run in reading.runs}
    less = f'<p class="notes">{escape(LESS[detail])}</p>' if detail in LESS else ""
    return Template(_file("report.html")).substitute(parts, run_data=_json(everything), less=less)


def _name(reading: Reading) -> str:
    return reading.root.resolve().name


@cache
def _file(name: str) -> str:
    return (files("softmask.experiments.report") / "page" / name).read_text()


def _json(content: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _colours() -> str:
    light, dark = (";".join(f"--c{i}:{pair[ground]}" for i, pair in enumerate(COLOURS)) for ground in (0, 1))
    return f':root{{{light}}}\n:root[data-theme="dark"]{{{dark}}}\n'


def _summary(reading: Reading) -> str:
    counts = {
        status: sum(run.status == status for run in reading.runs) for status in ("finished", "failed", "unfinished")
    }
    shown = {
        "finished runs": counts["finished"],
        "methods": len({run.config.method for run in reading.runs}),
        "sequences": len({run.config.sequence for run in reading.runs}),
        "failed": counts["failed"],
        "unfinished": counts["unfinished"],
        "folders left out": len(reading.left_out),
    }
    kept = {name: count for name, count in shown.items() if count or name == "finished runs"}
    return "".join(f"<div><dt>{name}</dt><dd>{count}</dd></div>" for name, count in kept.items())


def _section(section: Section, tables: dict[str, Table], figures: dict[str, list[Chart]], reading: Reading) -> str:
    title, lead, blocks = section
    parts = [_block(block, tables, figures, reading) for block in blocks]
    if not any(parts):
        return ""
    head = f'<section id="{title.lower()}"><h2>{title}</h2><p class="lead">{escape(lead)}</p>'
    return head + "\n".join(parts) + "</section>"


def _block(block: Block, tables: dict[str, Table], figures: dict[str, list[Chart]], reading: Reading) -> str:
    if block.kind == "figures":
        body = _figures(block.name, figures.get(block.name, []))
    else:
        table = tables.get(block.name)
        body = _table(block.name, table, reading) if table is not None and table.rows else ""
    if not body:
        return ""
    heading = f"<h3>{escape(block.heading)}</h3>" if block.heading else ""
    about = f'<p class="about">{escape(block.about)}</p>' if block.about else ""
    return heading + about + body


def _table(name: str, table: Table, reading: Reading) -> str:
    classes = ["long"] if len(table.rows) > MANY_ROWS else []
    classes += ["wide-text"] if name == "claims" else []
    drawn = _with_words(as_html(_without_constants(table)))
    store = f" --store {reading.root}" if ANALYSES[name].needs_runs else ""
    place = f"<span>The paper's {ANALYSES[name].paper}.</span>" if ANALYSES[name].paper else ""
    how = f"<code>softmask analyse {name}{escape(store)}</code>{_copies(name, table)}{place}"
    return f'<div class="{" ".join(classes)}">{drawn}</div><div class="how">{how}</div>'


def _with_words(drawn: str) -> str:
    """Verdicts and states with a class of their own."""
    for word, kind in WORDS.items():
        drawn = drawn.replace(f"<td>{word}</td>", f'<td class="{kind}">{word}</td>')
        drawn = drawn.replace(f'<td class="number">{word}</td>', f'<td class="number {kind}">{word}</td>')
    return drawn


def _without_constants(table: Table) -> Table:
    """A value that is the same in all rows becomes a note: a phone is narrow."""
    if len(table.rows) < 2:
        return table
    columns = [name for name in table.columns[1:] if name in SAID_ONCE]
    same = {name: table.frame[name].iloc[0] for name in columns if table.frame[name].astype(str).nunique() == 1}
    shared = "; ".join(f"{name}: {value}" for name, value in same.items() if value is not None)
    kept = table.select([name for name in table.columns if name not in same])
    return kept.noting(f"In all rows: {shared}.") if shared else kept


def _copies(name: str, table: Table) -> str:
    """Buttons that copy the table as Markdown, CSV and LaTeX; very long tables have none."""
    made = []
    for form, suffix in SUFFIXES.items():
        text = WRITERS[form](table)
        if len(text) < LARGEST_COPY:
            label = {"csv": "CSV", "latex": "LaTeX", "markdown": "Markdown"}[form]
            made.append(
                f'<button type="button" data-copy="{name}-{suffix}">Copy {label}</button>'
                f'<pre hidden id="{name}-{suffix}">\n{escape(text)}</pre>'
            )
    return "".join(made)


def _figures(name: str, charts: Sequence[Chart]) -> str:
    if not charts:
        return ""
    drawn = "".join(
        f'<figure data-option="{i}"><figcaption>{escape(chart.title)}</figcaption>'
        f'<div class="plot" data-chart="{escape(chart.name)}" data-alt="{escape(chart.alt)}"></div>'
        + (f'<p class="notes">{escape(chart.note)}.</p></figure>' if chart.note else "</figure>")
        for i, chart in enumerate(charts)
    )
    choice = ""
    if len(charts) > MANY_CHARTS:
        options = "".join(f'<option value="{i}">{escape(chart.title)}</option>' for i, chart in enumerate(charts))
        choice = f'<label class="how">Show <select data-charts="figures-{name}">{options}</select></label>'
    return f'{choice}<div class="charts" id="figures-{name}">{drawn}</div>'


def _runs(reading: Reading) -> str:
    drawn = as_html(runs_table(reading.runs, references(reading.runs)))
    drawn = re.sub(r'<th scope="row"[^>]*>([^<]+)</th>', _linked, drawn)
    drawn = _with_words(drawn)
    long = ' class="long"' if len(reading.runs) > MANY_ROWS else ""
    return f"<div{long}>{drawn}</div>"


def _linked(found: re.Match[str]) -> str:
    """The name of a run with a link to its page."""
    return f'<th scope="row"><a href="#run/{quote(unescape(found[1]))}">{found[1]}</a></th>'


def _left_out(reading: Reading, tables: dict[str, Table]) -> str:
    """Folders that are not runs, and empty tables."""
    items = [f"<li><code>{escape(folder)}</code> {escape(reason)}</li>" for folder, reason in reading.left_out]
    empty = [name for name, table in tables.items() if not table.rows]
    items += [
        f"<li><code>softmask analyse {name}</code> has no data yet: {escape(ANALYSES[name].summary)}</li>"
        for name in empty
    ]
    return f'<h3>Left out</h3><ul class="notes">{"".join(items)}</ul>' if items else ""
