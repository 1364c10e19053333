"""`softmask report`: from a store to a page."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import softmask
from tests.experiments.report.made import mixed_store


def test_a_page_and_what_was_left_out(tmp_path: Path) -> None:
    mixed_store(tmp_path / "store")
    page = tmp_path / "new folder" / "report.html"
    told = softmask("report", tmp_path / "store", "-o", page)
    assert told.code == 0
    assert f"report: {page} (18 runs" in told.out
    assert told.err.count("left out:") == 2
    assert page.read_text().startswith("<!doctype html>")
    assert not list(page.parent.glob("*.tmp"))


def test_no_store_or_an_empty_one(tmp_path: Path) -> None:
    assert "there is no folder" in softmask("report", tmp_path / "nowhere").errors()[0]
    ended = softmask("report", tmp_path, "-o", tmp_path / "report.html")
    assert (ended.code, "no run in" in ended.errors()[0]) == (1, True)
    assert not (tmp_path / "report.html").exists()
