"""One self-contained page from a store: no address of any other place is in it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
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
from softmask.experiments.report.charts import Chart
from softmask.experiments.report.formats import SUFFIXES, WRITERS
from softmask.experiments.report.html_table import as_html
from softmask.experiments.report.palette import COLOURS, DASHES, FIRST, OTHERS
from softmask.experiments.report.run_pages import LESS, run_data, runs_table
from softmask.experiments.report.sections import SECTIONS, Block, Section

LIMIT = 8_000_000
"""Bytes: what still goes through a mail server."""
LARGEST_COPY = 60_000
MANY_ROWS, MANY_CHARTS = 25, 4
SAID_ONCE = ("training", "changed", "seeds", "ranked over", "features")
SCRIPTS = ("tables.js", "charts.js", "maps.js", "runs.js")
WORDS = {"held": "held", "not held": "not-held", "no data": "no-data", "failed": "failed", "unfinished": "unfinished"}


def report_html(reading: Reading, tables: dict[str, Table], figures: dict[str, list[Chart]]) -> str:
    """The page; where there are very many runs, each of them is told in less detail."""
    if not reading.runs:
        raise SoftmaskError(f"no run in {reading.root}: `softmask run` makes one, `softmask list runs` shows them")
    parts = _parts(reading, tables, figures)
    for detail in (0, *LESS):
        page = _page(reading, parts, detail)
        if len(page.encode()) < LIMIT:
            return page
    raise SoftmaskError(
        f"the report of {len(reading.runs)} runs would be larger than {LIMIT / 1e6:.0f} MB: divide them"
    )


def _parts(reading: Reading, tables: dict[str, Table], figures: dict[str, list[Chart]]) -> dict[str, str]:
    """All that does not depend on how much is told of each run."""
    sections = [_section(section, tables, figures, reading) for section in SECTIONS]
    shown = [(section, body) for section, body in zip(SECTIONS, sections, strict=True) if body]
    charts = {chart.name: chart.to_dict() for each in figures.values() for chart in each}
    links = "".join(f'<a href="#{section.id}">{section.title}</a>' for section, _ in shown)
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
    """JSON that no name can break out of."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _colours() -> str:
    light, dark = (";".join(f"--c{i}:{pair[ground]}" for i, pair in enumerate(COLOURS)) for ground in (0, 1))
    return f':root{{{light}}}\n:root[data-theme="dark"]{{{dark}}}\n'


def _summary(reading: Reading) -> str:
    counts = {
        status: sum(run.status == status for run in reading.runs) for status in ("finished", "failed", "unfinished")
    }
    told = {
        "finished runs": counts["finished"],
        "methods": len({run.config.method for run in reading.runs}),
        "sequences": len({run.config.sequence for run in reading.runs}),
        "failed": counts["failed"],
        "unfinished": counts["unfinished"],
        "folders left out": len(reading.left_out),
    }
    kept = {name: count for name, count in told.items() if count or name == "finished runs"}
    return "".join(f"<div><dt>{name}</dt><dd>{count}</dd></div>" for name, count in kept.items())


def _section(section: Section, tables: dict[str, Table], figures: dict[str, list[Chart]], reading: Reading) -> str:
    parts = [_block(block, tables, figures, reading) for block in section.blocks]
    if not any(parts):
        return ""
    head = f'<section id="{section.id}"><h2>{escape(section.title)}</h2><p class="lead">{escape(section.lead)}</p>'
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
    """Verdicts and states in their colours."""
    for word, kind in WORDS.items():
        drawn = drawn.replace(f"<td>{word}</td>", f'<td class="{kind}">{word}</td>')
        drawn = drawn.replace(f'<td class="number">{word}</td>', f'<td class="number {kind}">{word}</td>')
    return drawn


def _without_constants(table: Table) -> Table:
    """What is the same in all rows is said once, below: a phone has no room for it."""
    if len(table.rows) < 2:
        return table
    columns = [i for i, name in enumerate(table.columns) if name in SAID_ONCE and i > 0]
    same = {i: table.rows[0][i] for i in columns if len({str(row[i]) for row in table.rows}) == 1}
    said = "; ".join(f"{table.columns[i]}: {value}" for i, value in same.items() if value is not None)
    kept = [i for i in range(len(table.columns)) if i not in same]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=[tuple(row[i] for i in kept) for row in table.rows],
        notes=((f"In all rows: {said}.",) if said else ()) + table.notes,
        labels=sum(i < table.labels for i in kept),
    )


def _copies(name: str, table: Table) -> str:
    """The table as CSV, Markdown and LaTeX, to be copied by a click; a very long one is better written to a file."""
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
        f'<div class="plot" data-chart="{escape(chart.name)}" data-alt="{escape(chart.alt)}"></div></figure>'
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
    """The name of a run, leading to its page."""
    return f'<th scope="row"><a href="#run/{quote(unescape(found[1]))}">{found[1]}</a></th>'


def _left_out(reading: Reading, tables: dict[str, Table]) -> str:
    """Folders that are no runs, and tables for which there is nothing."""
    items = [f"<li><code>{escape(folder)}</code> {escape(reason)}</li>" for folder, reason in reading.left_out]
    empty = [name for name, table in tables.items() if not table.rows]
    items += [
        f"<li><code>softmask analyse {name}</code> has nothing to show yet: {escape(ANALYSES[name].summary)}</li>"
        for name in empty
    ]
    return f'<h3>Left out</h3><ul class="notes">{"".join(items)}</ul>' if items else ""
