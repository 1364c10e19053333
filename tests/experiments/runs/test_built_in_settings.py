"""With the built-in settings every method learns on the built-in sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.errors import ConfigError
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.settings_file import settings_changes
from softmask.experiments.runs.store import Store
from softmask.learning.registry import METHODS
from tests.cli.command import softmask


@pytest.mark.parametrize("sequence", ["D-5", "R-10"])
def test_all_methods_share_the_training(sequence: str) -> None:
    configs = {
        name: make_config(name, sequence, preset="short", changes=settings_changes("built-in", name, sequence))
        for name in METHODS.names()
    }
    assert len({config.training for config in configs.values()}) == 1
    assert configs["spg"].training.batch == 16


def test_other_sequences_have_none() -> None:
    with pytest.raises(ConfigError, match="C-10"):
        settings_changes("built-in", "hat", "C-10")


def test_a_run_takes_them_by_their_name(tmp_path: Path) -> None:
    options = ["--sequence", "R-10", "--preset", "short", "--tasks", 1, "--set", "epochs=1", "--set", "width=0.0625"]
    done = softmask("run", "--method", "hat", *options, "--settings", "built-in", "--store", tmp_path, "--json").json()
    assert (done["config"]["settings"]["steepness"], done["config"]["training"]["batch"]) == (50.0, 16)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hat", "wsn", "cat", "pgn", "pathnet"])
def test_isolation_learns_ten_classes(method: str, tmp_path: Path) -> None:
    config = make_config(method, "R-10", preset="short", tasks=2, changes=settings_changes("built-in", method, "R-10"))
    learned = run(config, Store(tmp_path)).accuracies()
    assert (learned[0][0] + learned[1][1]) / 2 > 25, "chance is 10"
