"""Tables for LaTeX with booktabs, ready to paste."""

from __future__ import annotations

import re

from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.report.tables import cell_text, marks

MINUS = "\N{MINUS SIGN}"
SPECIAL = {
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
EMPHASIS = {1: r"\textbf", 2: r"\underline"}


def escaped(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)


def as_latex(table: Table, label: str = "") -> str:
    """Columns with nothing in them are left out; best is bold, second underlined, as in the paper."""
    shown, footnotes = table.shown_columns(), table.footnotes()
    alignment = "".join("r" if table.is_numeric(index) else "l" for index in shown)
    body = [" & ".join(_cell(row[index], footnotes) for index in shown) + r" \\" for row in table.rows]
    notes = [f"$^{{{number}}}$ {escaped(text)}" for number, text in enumerate(footnotes, 1)]
    notes += [escaped(text) for text in table.notes]
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{escaped(table.caption)}}}",
        *([rf"\label{{tab:{label}}}"] if label else []),
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        " & ".join(escaped(table.columns[index]) for index in shown) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip\footnotesize", *(rf"{note}\par" for note in notes)] if notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _cell(cell: Cell, footnotes: list[str]) -> str:
    if not isinstance(cell, Value):
        return escaped(_minus(cell_text(cell)) if isinstance(cell, (int, float)) else cell_text(cell))
    text = escaped(_minus(cell_text(cell)))
    number = cell.number(cell.mean)
    if cell.rank in EMPHASIS:
        shown = escaped(_minus(number))
        text = f"{EMPHASIS[cell.rank]}{{{shown}}}" + text.removeprefix(shown)
    footnote = marks(cell, footnotes)
    return text + (f"$^{{{footnote}}}$" if footnote else "")


def _minus(text: str) -> str:
    """A hyphen before a digit is a minus sign."""
    return re.sub(r"-(?=\d)", MINUS, text)
