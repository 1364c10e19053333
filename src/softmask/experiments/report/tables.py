"""Tables as text for a terminal, as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from softmask.experiments.analyses.table import Cell, Table, Value

WIDTH_WITHOUT_TERMINAL = 1000
STYLES = {1: "bold", 2: "underline"}


def cell_text(cell: Cell, plus_minus: str = " ± ", emphasise: Callable[[str, int], str] | None = None) -> str:
    """One decimal, as in the paper, unless the value asks for another; a dash where there is nothing."""
    if cell is None:
        return "-"
    if not isinstance(cell, Value):
        return f"{round(cell, 1) + 0.0:.1f}" if isinstance(cell, float) else str(cell)
    text = cell.number(cell.mean)
    if emphasise is not None and cell.rank is not None:
        text = emphasise(text, cell.rank)
    if cell.std is not None:
        text += f"{plus_minus}{cell.std:.{cell.digits}f}"
    if cell.interval is not None:
        text += " [" + ", ".join(map(cell.number, cell.interval)) + "]"
    if cell.paper is not None:
        text += f" (paper {cell.number(cell.paper)}, {cell.difference})"
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
        text = cell_text(cell, emphasise=lambda text, rank: f"**{text}**" if rank == 1 else f"<u>{text}</u>")
        return text.replace("|", "\\|") + (f"<sup>{number}</sup>" if number else "")

    lines = [f"**{table.caption}**", ""]
    lines.append("| " + " | ".join(column.replace("|", "\\|") for column in table.columns) + " |")
    lines.append("|" + "|".join("---" for _ in table.columns) + "|")
    lines += ["| " + " | ".join(written(cell) for cell in row) + " |" for row in table.rows]
    numbered = [f"<sup>{number}</sup> {text}" for number, text in enumerate(footnotes, 1)]
    return "\n".join([*lines, "", *(f"{note}  " for note in [*numbered, *table.notes])]).rstrip() + "\n"


def plain(cell: Cell) -> object:
    """A cell for JSON, with all its digits."""
    if not isinstance(cell, Value):
        return cell
    told: dict[str, object] = {"mean": cell.mean, "std": cell.std}
    for name in ("interval", "rank", "paper", "footnotes"):
        if (value := getattr(cell, name)) not in (None, ()):
            told[name] = value
    return told


def as_json(table: Table) -> str:
    rows = [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
    return json.dumps({"caption": table.caption, "rows": rows, "notes": list(table.notes)}, indent=1)


def as_csv(table: Table) -> str:
    """Full precision; what a cell holds beside its mean stands in columns of its own."""
    extras = [_extras(table, index) for index in range(len(table.columns))]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header: list[str] = []
    for column, more in zip(table.columns, extras, strict=True):
        header += [column, *(f"{column} {name}" for name in more)]
    writer.writerow(header)
    for row in table.rows:
        line: list[object] = []
        for cell, more in zip(row, extras, strict=True):
            known = _parts(cell) if isinstance(cell, Value) else {}
            line += [cell.mean if isinstance(cell, Value) else cell, *(known.get(name) for name in more)]
        writer.writerow(line)
    return file.getvalue()


def _parts(value: Value) -> dict[str, float | int | str | None]:
    low, high = value.interval or (None, None)
    notes = " ".join(value.footnotes) or None
    return {"std": value.std, "low": low, "high": high, "paper": value.paper, "rank": value.rank, "notes": notes}


def _extras(table: Table, column: int) -> list[str]:
    """What of std, interval, paper, rank and notes any cell of a column has."""
    parts = [_parts(cell) for row in table.rows if isinstance(cell := row[column], Value)]
    return [name for name in _parts(Value(0.0)) if any(part[name] is not None for part in parts)]


def _with_room(console: Console) -> Console:
    """A file or a pipe has no edge: there a table takes the room that it needs."""
    return console if console.is_terminal else Console(file=console.file, width=WIDTH_WITHOUT_TERMINAL)


def print_table(table: Table, console: Console) -> None:
    """As text: columns with nothing in them are left out, and square brackets are no markup."""
    shown, footnotes = table.shown_columns(), table.footnotes()
    drawn = RichTable(title=Text(table.caption), box=SIMPLE, title_justify="left")
    for index in shown:
        justify = "right" if table.is_numeric(index) else "left"
        drawn.add_column(Text(table.columns[index]), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in table.rows:
        drawn.add_row(*(_styled(row[index], footnotes) for index in shown))
    _with_room(console).print(drawn)
    for number, note in enumerate(footnotes, 1):
        console.print(Text(f"({number}) {note}", "dim"))
    for note in table.notes:
        console.print(Text(note, "dim"))


def _styled(cell: Cell, footnotes: Sequence[str]) -> Text:
    number = marks(cell, footnotes)
    rank = cell.rank if isinstance(cell, Value) else None
    return Text(cell_text(cell) + (f" ({number})" if number else ""), STYLES.get(rank or 0, ""))
