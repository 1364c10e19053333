"""Tables as text for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from softmask.analyses.table import Cell, Table, Value

FORMATS = ("text", "markdown", "json")
WIDTH_WITHOUT_TERMINAL = 1000


def cell_text(cell: Cell, plus_minus: str = " ± ") -> str:
    """One decimal, as in the paper; a dash where there is nothing."""
    if cell is None:
        return "-"
    if isinstance(cell, Value):
        return f"{cell.mean:.1f}" if cell.std is None else f"{cell.mean:.1f}{plus_minus}{cell.std:.1f}"
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


def as_markdown(table: Table) -> str:
    lines = [f"**{table.caption}**", ""]
    lines.append("| " + " | ".join(table.columns) + " |")
    lines.append("|" + "|".join("---" for _ in table.columns) + "|")
    lines += ["| " + " | ".join(cell_text(cell).replace("|", "\\|") for cell in row) + " |" for row in table.rows]
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes)]).rstrip() + "\n"


def as_json(table: Table) -> str:
    def plain(cell: Cell) -> object:
        return dataclasses.asdict(cell) if isinstance(cell, Value) else cell

    rows = [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
    return json.dumps({"caption": table.caption, "rows": rows, "notes": list(table.notes)}, indent=1)


def _with_room(console: Console) -> Console:
    """A file or a pipe has no edge: there a table takes the room that it needs."""
    return console if console.is_terminal else Console(file=console.file, width=WIDTH_WITHOUT_TERMINAL)


def print_table(table: Table, console: Console) -> None:
    """As text: columns with nothing in them are left out, and square brackets are no markup."""
    shown = [i for i in range(len(table.columns)) if not table.rows or any(row[i] is not None for row in table.rows)]
    drawn = RichTable(title=Text(table.caption), box=SIMPLE, title_justify="left")
    for index in shown:
        numeric = any(isinstance(row[index], (int, float, Value)) for row in table.rows)
        drawn.add_column(Text(table.columns[index]), justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell_text(row[index])) for index in shown))
    _with_room(console).print(drawn)
    for note in table.notes:
        console.print(Text(note, "dim"))
