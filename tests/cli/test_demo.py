"""`softmask demo`: the main job on built-in data, here with less of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.cli import demo
from softmask.experiments.runs.store import Store
from tests.cli.command import softmask


@pytest.mark.slow
def test_shows_all_methods_and_writes_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    less = {"epochs": 1, "batch": 256, "width": 0.0625}
    monkeypatch.setattr(demo, "built_in_settings", lambda method, sequence: less)
    monkeypatch.setattr(demo, "EXECUTOR", "serial")
    told = softmask("demo", "--store", tmp_path)
    assert told.code == 0
    assert all(told.out.count(f" {title} ") == 2 for title in ("ONE", "NCL", "SPG", "HAT"))
    assert "paper ACC" not in told.out, "columns with nothing in them are left out"
    page = tmp_path / "report.html"
    assert f"open file://{page} in a browser" in told.out
    assert "SPG" in page.read_text()
    assert "left out" not in told.err
    assert {run.config.training.batch for run in Store(tmp_path).runs()} == {256}, "the built-in settings are used"
    before = page.read_text()
    again = softmask("demo", "--store", tmp_path)
    assert again.code == 0
    assert page.read_text() == before, "nothing is run twice"
