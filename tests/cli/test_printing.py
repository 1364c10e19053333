"""What the command line says beside its results."""

from __future__ import annotations

import pytest

from softmask.cli.printing import note


def test_what_is_noted_is_noted_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        note("this file is not the official one")
    assert capsys.readouterr().err.count("note: this file is not the official one") == 1
