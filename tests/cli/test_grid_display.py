"""The progress display of a grid."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from softmask.cli import grid
from softmask.cli.grid import GridDisplay, duration
from softmask.experiments.runs.grid import Cell
from tests.experiments.runs.examples import tiny_config


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(grid, "err", Console(file=written, force_terminal=True, width=100))
    config = tiny_config()
    cells = [Cell(config, "finished"), *[Cell(config, "missing")] * 4]
    with GridDisplay(cells, jobs=2, retry_failed=False) as display:
        for cell in (cells[0], Cell(config, "finished"), Cell(config, "failed", "why")):
            display.ended(cell)
        display._live.refresh()
    shown = written.getvalue()
    last = [line for line in shown.splitlines() if "cells an hour" in line][-1]
    numbers = [part.strip() for part in last.replace("│", "|").split("|")]
    assert numbers[1:6] == ["5", "2", "1", "2", "0"], "cells, finished, failed, running, waiting"
    assert "left" in last
