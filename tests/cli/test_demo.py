"""`softmask demo`: the main job on built-in data, here with less of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.cli import demo
from tests.cli.command import softmask


def test_shows_all_methods_and_keeps_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "CHANGES", {"epochs": 1, "batch": 64, "width": 0.0625})
    told = softmask("demo", "--store", tmp_path)
    assert told.code == 0
    assert all(f" {title} " in told.out for title in ("ONE", "NCL", "SPG"))
    assert "paper ACC" not in told.out, "columns with nothing in them are left out"
    written = (tmp_path / "accuracy.md").read_text()
    assert written.count("\n| D-5 |") == 3
    again = softmask("demo", "--store", tmp_path)
    assert again.out == told.out
    assert again.err.count("already finished") == 3
