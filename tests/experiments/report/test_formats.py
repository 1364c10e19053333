"""A table whose numbers are known comes out right in every format."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

from rich.console import Console

from softmask.experiments.analyses.table import Table, Value
from softmask.experiments.report.tables import (
    FORMATS,
    SUFFIXES,
    WRITERS,
    as_csv,
    as_html,
    as_json,
    as_latex,
    as_markdown,
    latex_escaped,
    print_table,
)

NOTE = "SI on C-20: the paper's ACC is -4.3 off"
TABLE = Table(
    "Accuracy & more, 100 %",
    ("method", "C_10", "BWT", "empty"),
    [
        ("(ONE)", Value(66.94, 3.14), None, None),
        ("SPG", Value(70.06, 0.26, rank=1, paper=67.7, footnotes=(NOTE,)), Value(-5.25, signed=True), None),
        ("<HAT>", Value(62.8, rank=2), Value(0.04, signed=True, interval=(-0.96, 1.04), digits=2), None),
    ],
    ("ACC = mean_j",),
)


class Cells(HTMLParser):
    """The text of every cell, row by row, and the tags that were opened and closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_markdown() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert lines[5] == "| SPG | **70.1** ± 0.3 (paper 67.7, +2.4)<sup>1</sup> | -5.2 | - |"
    assert lines[6] == "| <HAT> | <u>62.8</u> | +0.04 [-0.96, +1.04] | - |"
    assert f"<sup>1</sup> {NOTE}" in as_markdown(TABLE)


def test_csv_has_full_precision_and_columns_for_what_stands_beside() -> None:
    head, *body = csv.reader(io.StringIO(as_csv(TABLE)))
    assert head == [
        "method",
        "C_10",
        "C_10 std",
        "C_10 paper",
        "C_10 rank",
        "C_10 notes",
        "BWT",
        "BWT low",
        "BWT high",
        "empty",
    ]
    assert body[1] == ["SPG", "70.06", "0.26", "67.7", "1", NOTE, "-5.25", "", "", ""]
    assert body[2][6:9] == ["0.04", "-0.96", "1.04"]


def test_latex_is_booktabs_ready_to_paste() -> None:
    text = as_latex(TABLE, "results")
    assert r"\caption{Accuracy \& more, 100 \%}" in text
    assert r"\label{tab:results}" in text
    assert r"\begin{tabular}{lrr}" in text, "the empty column is left out"
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert body == [
        r"(ONE) & 66.9$\pm$3.1 & - \\".replace(r"$\pm$", r" $\pm$ "),
        r"SPG & \textbf{70.1} $\pm$ 0.3 (paper 67.7, +2.4)$^{1}$ & $-$5.2 \\",
        r"$<$HAT$>$ & \underline{62.8} & +0.04 [$-$0.96, +1.04] \\",
    ]
    assert r"method & C\_10 & BWT \\" in text
    assert text.count("{") == text.count("}")
    for begin, end in (("table", "table"), ("tabular", "tabular")):
        assert text.index(rf"\begin{{{begin}}}") < text.index(rf"\end{{{end}}}")


def test_latex_escapes_whatever_a_name_holds() -> None:
    assert latex_escaped("a_b^c~d\\{}#$%&") == (
        r"a\_b\textasciicircum{}c\textasciitilde{}d\textbackslash{}\{\}\#\$\%\&"
    )


def test_html_has_headers_sort_keys_and_nothing_unescaped() -> None:
    found = Cells(as_html(TABLE))
    assert found.open == []
    assert found.rows[0] == ["method", "C_10", "BWT"]
    assert found.rows[2] == ["SPG", "70.1 ± 0.31paper 67.7 (+2.4)", "\N{MINUS SIGN}5.2"]
    assert found.rows[3][0] == "<HAT>"
    assert found.rows[1][2] == "\N{EN DASH}"
    headers = [attributes for tag, attributes in found.tags if tag == "th"]
    assert [header["scope"] for header in headers] == ["col"] * 3 + ["row"] * 3
    keys = [attributes.get("data-sort") for tag, attributes in found.tags if tag == "td"]
    assert keys == ["66.94", None, "70.06", "-5.25", "62.8", "0.04"]
    assert [tag for tag, _ in found.tags if tag in ("strong", "u")] == ["strong", "u"]


def test_json_tells_more_only_where_there_is_more() -> None:
    first, second, third = json.loads(as_json(TABLE))["rows"]
    assert first["C_10"] == {"mean": 66.94, "std": 3.14}
    assert second["C_10"] == {"mean": 70.06, "std": 0.26, "rank": 1, "paper": 67.7, "footnotes": [NOTE]}
    assert third["BWT"]["interval"] == [-0.96, 1.04]


def test_text_shows_best_second_and_footnotes() -> None:
    file = io.StringIO()
    print_table(TABLE, Console(file=file, force_terminal=True, width=200, color_system="standard"))
    assert re.search(r"\x1b\[1m\s*70\.1 ± 0\.3", file.getvalue())
    assert re.search(r"\x1b\[4m\s*62\.8", file.getvalue())
    assert f"(1) {NOTE}" in file.getvalue()


def test_no_number_is_minus_nothing() -> None:
    assert Value(-0.04).number(-0.04) == "0.0"
    assert Value(-0.04, signed=True).number(-0.04) == "+0.0"
    assert Value(1.0, paper=1.04).difference == "+0.0"


def test_every_format_takes_every_table() -> None:
    assert set(FORMATS) == {"text", *WRITERS}
    assert set(SUFFIXES) <= set(WRITERS)
    for write in WRITERS.values():
        assert write(TABLE)
        assert write(Table("nothing", ("a", "b")))


def test_accuracy_at_chance_is_marked_in_the_report_and_for_programs() -> None:
    note = "Not above chance."
    rows = [("HAT", Value(9.8, at_chance=True, footnotes=(note,))), ("SPG", Value(70.0))]
    table = Table("x", ("method", "ACC"), rows)
    page = as_html(table)
    assert page.count('class="at-chance"') == 1
    assert note in page
    first, second = json.loads(as_json(table))["rows"]
    assert first["ACC"]["at_chance"] is True
    assert "at_chance" not in second["ACC"]


def test_json_keeps_a_published_zero() -> None:
    table = Table("t", ("method", "BWT"), [("SPG", Value(0.5, paper=0.0)), ("HAT", Value(0.5))])
    (spg, hat) = json.loads(as_json(table))["rows"]
    assert spg["BWT"]["paper"] == 0.0
    assert "paper" not in hat["BWT"]
