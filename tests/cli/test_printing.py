"""Messages of the command line beside its results."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from softmask.cli.printing import Progress, note, out, problem, tell


def test_what_is_noted_is_noted_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        note("this file is not the official one")
    assert capsys.readouterr().err.count("note: this file is not the official one") == 1


@pytest.mark.parametrize("show", [tell, problem, out.print])
def test_control_characters_are_shown_and_not_sent_to_the_terminal(
    capsys: pytest.CaptureFixture[str], show: Callable[[str], None]
) -> None:
    show("a folder \x1b[31m\x07named\r so\nand so")
    captured = capsys.readouterr()
    assert r"\x1b[31m\x07named\r so" in captured.out + captured.err
    assert "\x1b" not in captured.out + captured.err
    assert "\nand so" in captured.out + captured.err


def lines_of(progress: Progress, epochs: list[int], capsys: pytest.CaptureFixture[str], task: int = 0) -> list[str]:
    """What is printed as a task of four epochs goes on, ten seconds an epoch."""
    last = {"val_accuracy": 0.5, "lr": 0.1, "train_loss": 1.0}
    for epoch in epochs:
        fit = SimpleNamespace(epoch=epoch, done=epoch == 4, training=SimpleNamespace(epochs=4), last=last)
        progress(SimpleNamespace(id=task, ids=(task,)), fit)  # type: ignore[arg-type]
    return capsys.readouterr().err.splitlines()


def test_the_time_left_is_told_once_the_pace_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 110.0, 120.0, 130.0])
    progress = Progress("birds", 3, first=2)
    monkeypatch.setattr("softmask.cli.printing.SECONDS_BETWEEN_LINES", -1e9)
    monkeypatch.setattr("softmask.cli.printing.time", SimpleNamespace(monotonic=lambda: next(now)))
    first, second, third, last = lines_of(progress, [1, 2, 3, 4], capsys, task=2)
    assert "left" not in first
    assert "20 s left" in second
    assert "10 s left" in third
    assert "left" not in last
