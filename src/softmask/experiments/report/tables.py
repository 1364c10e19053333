"""Tables as text for a terminal, Markdown, CSV, JSON, LaTeX and HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import escape

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from softmask.errors import escaped
from softmask.experiments.analyses.table import Cell, Table, Value

WIDTH_WITHOUT_TERMINAL = 1000
STYLES = {1: "bold", 2: "underline"}
MINUS = "\N{MINUS SIGN}"


def cell_text(cell: Cell, emphasise: Callable[[str, int], str] | None = None) -> str:
    """One decimal, as in the paper, unless the value has other digits; a dash where there is nothing."""
    if cell is None:
        return "-"
    if not isinstance(cell, Value):
        return f"{round(cell, 1) + 0.0:.1f}" if isinstance(cell, float) else str(cell)
    text = cell.number(cell.mean)
    if emphasise is not None and cell.rank is not None:
        text = emphasise(text, cell.rank)
    if cell.std is not None:
        text += f" ± {cell.std:.{cell.digits}f}"
    if cell.interval is not None:
        text += " [" + ", ".join(map(cell.number, cell.interval)) + "]"
    if cell.paper is not None:
        text += f" ({cell.source} {cell.number(cell.paper)}, {cell.difference})"
    return text


def marks(cell: Cell, footnotes: Sequence[str]) -> str:
    """The numbers of a cell's footnotes: `1` or `1,3`."""
    if not isinstance(cell, Value):
        return ""
    return ",".join(str(footnotes.index(text) + 1) for text in cell.footnotes)


def as_markdown(table: Table) -> str:
    footnotes = table.footnotes()

    def written(cell: Cell) -> str:
        number = marks(cell, footnotes)
        text = cell_text(cell, lambda text, rank: f"**{text}**" if rank == 1 else f"<u>{text}</u>")
        return text.replace("|", "\\|") + (f"<sup>{number}</sup>" if number else "")

    lines = [f"**{table.caption}**", ""]
    lines.append("| " + " | ".join(column.replace("|", "\\|") for column in table.columns) + " |")
    lines.append("|" + "|".join("---" for _ in table.columns) + "|")
    lines += ["| " + " | ".join(map(written, row)) + " |" for row in table.rows]
    numbered = [f"<sup>{number}</sup> {text}" for number, text in enumerate(footnotes, 1)]
    return "\n".join([*lines, "", *(f"{note}  " for note in [*numbered, *table.notes])]).rstrip() + "\n"


def as_json(table: Table) -> str:
    def plain(cell: Cell) -> object:
        if not isinstance(cell, Value):
            return cell
        more = {name: getattr(cell, name) for name in ("interval", "rank", "paper", "footnotes", "at_chance")}
        # A published 0.0 is a number, unlike the defaults.
        details = {name: value for name, value in more.items() if value or (name == "paper" and value is not None)}
        return {"mean": cell.mean, "std": cell.std, **details}

    rows = [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
    return json.dumps({"caption": table.caption, "rows": rows, "notes": list(table.notes)}, indent=1)


def as_csv(table: Table) -> str:
    return str(table.numbers().to_csv(index=False, lineterminator="\n"))


def print_table(table: Table, console: Console) -> None:
    """As text, without empty columns. A file or a pipe has no right edge: there nothing is folded."""
    table, footnotes = table.without_empty_columns(), table.footnotes()
    drawn = RichTable(title=Text(escaped(table.caption)), box=SIMPLE, title_justify="left")
    for name in table.columns:
        drawn.add_column(Text(escaped(name)), justify="right" if table.is_numeric(name) else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(_styled(cell, footnotes) for cell in row))
    wide = console if console.is_terminal else Console(file=console.file, width=WIDTH_WITHOUT_TERMINAL)
    wide.print(drawn)
    for note in [*(f"({number}) {note}" for number, note in enumerate(footnotes, 1)), *table.notes]:
        console.print(Text(escaped(note), "dim"))


def _styled(cell: Cell, footnotes: Sequence[str]) -> Text:
    number = marks(cell, footnotes)
    rank = cell.rank if isinstance(cell, Value) else None
    return Text(escaped(cell_text(cell)) + (f" ({number})" if number else ""), STYLES.get(rank or 0, ""))


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    MINUS: "$-$",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def latex_escaped(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def as_latex(table: Table, label: str = "") -> str:
    """With booktabs, without empty columns; best is bold, second underlined, as in the paper."""
    table, footnotes = table.without_empty_columns(), table.footnotes()
    alignment = "".join("r" if table.is_numeric(name) else "l" for name in table.columns)
    shown = table.frame.map(lambda cell: _latex_cell(cell, footnotes))
    drawn = shown.to_latex(
        index=False,
        header=[latex_escaped(name) for name in table.columns],
        column_format=alignment,
        caption=latex_escaped(table.caption),
        label=f"tab:{label}" if label else None,
        position="t",
    )
    notes = [f"$^{{{number}}}$ {latex_escaped(text)}" for number, text in enumerate(footnotes, 1)]
    notes += [latex_escaped(text) for text in table.notes]
    below = "\n".join([r"\par\smallskip\footnotesize", *(rf"{note}\par" for note in notes), ""]) if notes else ""
    drawn = drawn.replace("\\begin{table}[t]\n", "\\begin{table}[t]\n\\centering\n")
    return "% \\usepackage{booktabs}\n" + drawn.replace(r"\end{table}", below + r"\end{table}")


def _latex_cell(cell: Cell, footnotes: Sequence[str]) -> str:
    emphasis = {1: "\0", 2: "\1"}  # survive escaping
    text = cell_text(cell, lambda text, rank: f"{emphasis[rank]}{text}\2")
    if not isinstance(cell, str):
        text = re.sub(r"-(?=\d)", MINUS, text)
    text = latex_escaped(text).replace("\0", r"\textbf{").replace("\1", r"\underline{").replace("\2", "}")
    number = marks(cell, footnotes)
    return text + (f"$^{{{number}}}$" if number else "")


LONG_TEXT = 30
THOUSANDS = 10_000
"""From here on a comma separates thousands."""
EMPHASIS = {1: ("strong", "best"), 2: ("u", "second best")}


def as_html(table: Table) -> str:
    """A figure with the table and its notes: sortable by the report's script, readable without it."""
    table, footnotes = table.without_empty_columns(), table.footnotes()
    numeric = {name: table.is_numeric(name) for name in table.columns}
    number = ' class="number"'
    head = "".join(f'<th scope="col"{number if numeric[name] else ""}>{escape(name)}</th>' for name in table.columns)
    body = []
    for row in table.rows:
        cells = []
        for index, (name, cell) in enumerate(zip(table.columns, row, strict=True)):
            tag = 'th scope="row"' if index < table.labels else "td"
            kind = number if numeric[name] else ""
            if isinstance(cell, str) and len(cell) > LONG_TEXT:
                kind = ' class="long-text"'
            cells.append(f"<{tag}{kind}{_sort_key(cell)}>{cell_html(cell, footnotes)}</{tag[:2]}>")
        body.append("<tr>" + "".join(cells) + "</tr>")
    notes = [f"<li><sup>{place}</sup> {escape(text)}</li>" for place, text in enumerate(footnotes, 1)]
    notes += [f"<li>{escape(text)}</li>" for text in table.notes]
    return (
        f'<figure class="table"><div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}">'
        f"<table><caption>{escape(table.caption)}</caption>\n<thead><tr>{head}</tr></thead>\n"
        "<tbody>\n"
        + "\n".join(body)
        + "\n</tbody></table></div>"
        + (f'<ul class="notes">{"".join(notes)}</ul>' if notes else "")
        + "</figure>\n"
    )


def _sort_key(cell: Cell) -> str:
    """Means sort in full precision."""
    value = cell.mean if isinstance(cell, Value) else cell
    return f' data-sort="{value!r}"' if isinstance(value, (int, float)) else ""


def cell_html(cell: Cell, footnotes: Sequence[str]) -> str:
    if cell is None:
        return '<span class="none">&ndash;</span>'
    if not isinstance(cell, Value):
        text = f"{cell:,}" if isinstance(cell, int) and abs(cell) >= THOUSANDS else cell_text(cell)
        return escape(text.replace("-", MINUS) if isinstance(cell, float) else text)
    number = escape(cell.number(cell.mean).replace("-", MINUS))
    if cell.rank in EMPHASIS:
        tag, spoken = EMPHASIS[cell.rank]
        number = f'<{tag} title="{spoken}">{number}</{tag}>'
    if cell.at_chance:
        number = f'<span class="at-chance" title="not above chance">{number}</span>'
    if cell.std is not None:
        number += f'<span class="std"> ± {cell.std:.{cell.digits}f}</span>'
    if cell.interval is not None:
        low, high = (cell.number(end).replace("-", MINUS) for end in cell.interval)
        number += f'<span class="std"> [{low}, {high}]</span>'
    if footnote := marks(cell, footnotes):
        number += f"<sup>{footnote}</sup>"
    if cell.paper is None or cell.difference is None:
        return number
    paper, difference = (text.replace("-", MINUS) for text in (cell.number(cell.paper), cell.difference))
    beside = f'{escape(cell.source)} {paper} <span class="difference">({difference})</span>'
    return f'{number}<span class="paper">{beside}</span>'


WRITERS: dict[str, Callable[[Table], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
    "html": as_html,
    "json": as_json,
}
FORMATS = ("text", *WRITERS)
SUFFIXES = {"markdown": "md", "csv": "csv", "latex": "tex"}
"""Formats of every table in `softmask report --files`."""
