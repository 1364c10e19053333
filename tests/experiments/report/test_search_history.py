"""The history of a search as a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.errors import SoftmaskError
from softmask.experiments.report.files import draw_history
from softmask.experiments.runs.study import TrialRecord

TRIALS = [
    TrialRecord(1, "complete", {}, 70.0, 5),
    TrialRecord(2, "pruned", {}, 40.0, 2, "hopeless"),
    TrialRecord(3, "complete", {}, 80.0, 5),
    TrialRecord(4, "pruned", {}, None, 0, "diverged"),
]


@pytest.mark.parametrize(("suffix", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_name_says_the_form(tmp_path: Path, suffix: str, begins: bytes) -> None:
    file = tmp_path / "new" / f"history.{suffix}"
    draw_history(TRIALS, "SPG on D-5", file)
    assert file.read_bytes().startswith(begins)


def test_the_defaults_have_a_line_only_if_they_were_finished(tmp_path: Path) -> None:
    """Text is drawn as shapes; its comment in the file still says what it is."""
    draw_history(TRIALS, "with", tmp_path / "with.svg")
    draw_history(TRIALS[1:], "without", tmp_path / "without.svg")
    assert "<!-- defaults -->" in (tmp_path / "with.svg").read_text()
    assert "<!-- defaults -->" not in (tmp_path / "without.svg").read_text()


def test_no_trial_at_all_is_an_empty_figure(tmp_path: Path) -> None:
    draw_history([], "nothing", tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").exists()


def test_another_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SoftmaskError, match=r"history\.gif: .*png"):
        draw_history(TRIALS, "SPG on D-5", tmp_path / "history.gif")
