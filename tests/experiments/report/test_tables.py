"""Tables as text, Markdown and JSON: nothing is lost, folded or taken for markup."""

from __future__ import annotations

import io
import json

from rich.console import Console

from softmask.experiments.analyses.table import Table, Value
from softmask.experiments.report.tables import as_json, as_markdown, cell_text, print_table

TABLE = Table(
    caption="Results of [bold]a[/bold] | b",
    columns=("method", "ACC", "paper ACC", "a[j]"),
    rows=[("a|b [red]", Value(81.25, 1.04), None, 3), ("x" * 90, Value(7.0), None, None)],
    notes=("ACC = mean of a[T][j]",),
)


def printed(table: Table, **options: object) -> str:
    file = io.StringIO()
    print_table(table, Console(file=file, **options))  # type: ignore[arg-type]
    return file.getvalue()


def test_cells() -> None:
    assert cell_text(None) == "-"
    assert cell_text(Value(81.25)) == "81.2"
    assert cell_text(Value(81.26, 0.5)) == "81.3 ± 0.5"
    assert cell_text(0.0) == "0.0"
    assert cell_text(3) == "3"
    assert cell_text("text") == "text"


def test_text_keeps_square_brackets() -> None:
    text = printed(TABLE)
    for part in (TABLE.caption, "a|b [red]", "a[j]", "ACC = mean of a[T][j]"):
        assert part in text


def test_text_folds_nothing_without_a_terminal() -> None:
    assert "x" * 90 in printed(TABLE)
    assert "x" * 90 not in printed(TABLE, force_terminal=True, width=60, color_system=None)


def test_text_leaves_out_columns_with_nothing_in_them() -> None:
    assert "paper ACC" not in printed(TABLE)
    assert "a[j]" in printed(TABLE), "one value is enough"
    assert all(column in printed(Table("empty", TABLE.columns)) for column in TABLE.columns)


def test_markdown_has_all_columns_and_escapes_bars() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert lines[2] == "| method | ACC | paper ACC | a[j] |"
    assert lines[3] == "|---|---|---|---|"
    assert lines[4] == "| a\\|b [red] | 81.2 ± 1.0 | - | 3 |"
    assert lines[-1] == "ACC = mean of a[T][j]"
    assert as_markdown(TABLE).endswith("\n")


def test_json_keeps_full_precision() -> None:
    told = json.loads(as_json(TABLE))
    assert told["caption"] == TABLE.caption
    assert told["notes"] == list(TABLE.notes)
    first = {"method": "a|b [red]", "ACC": {"mean": 81.25, "std": 1.04}, "paper ACC": None, "a[j]": 3}
    assert told["rows"][0] == first
