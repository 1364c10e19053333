"""Tables as HTML: sortable by the report's script, readable without it, headers that a screen reader announces."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.report.tables import cell_text, marks

MINUS = "\N{MINUS SIGN}"
LONG_TEXT = 30
MANY = 10_000
"""From here on thousands are set apart."""
EMPHASIS = {1: "strong", 2: "u"}
SPOKEN = {1: "best", 2: "second best"}


def as_html(table: Table) -> str:
    """A figure with the table and its notes. What a cell sorts by is its mean, in full precision."""
    shown, footnotes = table.shown_columns(), table.footnotes()
    head = "".join(_header(table, index) for index in shown)
    body = "\n".join(_row(table, row, shown, footnotes) for row in table.rows)
    notes = [f"<li><sup>{number}</sup> {escape(text)}</li>" for number, text in enumerate(footnotes, 1)]
    notes += [f"<li>{escape(text)}</li>" for text in table.notes]
    return (
        f'<figure class="table"><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f"<table><caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
        + (f'<ul class="notes">{"".join(notes)}</ul>' if notes else "")
        + "</figure>\n"
    )


def _header(table: Table, index: int) -> str:
    kind = ' class="number"' if table.is_numeric(index) else ""
    return f'<th scope="col"{kind}>{escape(table.columns[index])}</th>'


def _row(table: Table, row: Sequence[Cell], shown: Sequence[int], footnotes: Sequence[str]) -> str:
    cells = []
    for index in shown:
        cell, kind = row[index], ' class="number"' if table.is_numeric(index) else ""
        tag = 'th scope="row"' if index < table.labels else "td"
        if isinstance(cell, str) and len(cell) > LONG_TEXT:
            kind = ' class="long-text"'
        cells.append(f"<{tag}{kind}{_sort_key(cell)}>{cell_html(cell, footnotes)}</{tag[:2]}>")
    return "<tr>" + "".join(cells) + "</tr>"


def _sort_key(cell: Cell) -> str:
    if isinstance(cell, Value):
        return f' data-sort="{cell.mean!r}"'
    return f' data-sort="{cell!r}"' if isinstance(cell, (int, float)) else ""


def cell_html(cell: Cell, footnotes: Sequence[str]) -> str:
    if cell is None:
        return '<span class="none">&ndash;</span>'
    if not isinstance(cell, Value):
        text = f"{cell:,}" if isinstance(cell, int) and abs(cell) >= MANY else cell_text(cell)
        return escape(text.replace("-", MINUS) if isinstance(cell, float) else text)
    number = escape(cell.number(cell.mean).replace("-", MINUS))
    if cell.rank in EMPHASIS:
        tag = EMPHASIS[cell.rank]
        number = f'<{tag} title="{SPOKEN[cell.rank]}">{number}</{tag}>'
    if cell.std is not None:
        number += f'<span class="std"> ± {cell.std:.{cell.digits}f}</span>'
    if cell.interval is not None:
        low, high = (cell.number(end).replace("-", MINUS) for end in cell.interval)
        number += f'<span class="std"> [{low}, {high}]</span>'
    if footnote := marks(cell, footnotes):
        number += f"<sup>{footnote}</sup>"
    return number + _beside(cell)


def _beside(value: Value) -> str:
    """The paper's number below ours, and how far ours is from it."""
    if value.paper is None or value.difference is None:
        return ""
    paper, difference = (text.replace("-", MINUS) for text in (value.number(value.paper), value.difference))
    return f'<span class="paper">paper {paper} <span class="difference">({difference})</span></span>'
