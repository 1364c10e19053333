"""Messages of the command line beside its results."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from softmask.cli.printing import note, out, problem, tell


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
