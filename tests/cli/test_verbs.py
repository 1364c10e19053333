"""The verbs are told without loading them, and told right."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from softmask.cli import VERBS, load_verb
from tests.cli.command import softmask
from tests.experiments.runs.examples import environment

WITHOUT_TORCH = [["--help"], ["--version"], [], ["lern"], ["--wrong"]]


@pytest.mark.parametrize("name", VERBS)
def test_the_summary_is_the_first_line_of_the_verbs_own_help(name: str) -> None:
    assert load_verb(name).help.partition("\n")[0] == VERBS[name].summary


def test_help_tells_every_verb_in_its_order() -> None:
    assert re.findall(r"^\S (\w+) ", softmask("--help").out, re.MULTILINE) == list(VERBS)


@pytest.mark.parametrize("arguments", WITHOUT_TORCH, ids=" ".join)
def test_torch_is_not_imported_before_a_verb_is_called(arguments: list[str]) -> None:
    code = "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); import softmask.__main__"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_a_wrong_verb_is_told_with_the_nearest_right_one() -> None:
    ended = softmask("lern")
    assert ended.code == 2
    assert "Did you mean 'learn'?" in ended.err
