"""Kill -9 while a model learns: the folder loads, and predicts as before or as after, never between."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from softmask import ContinualModel
from tests.cli.command import softmask
from tests.experiments.runs.examples import environment
from tests.models.examples import write_digits

PATIENCE = 120


class Case:
    """A model that knows one task, what it says, and what it says once it has learned the second."""

    def __init__(self, root: Path) -> None:
        self.root, self.digits = root, write_digits(root / "digits", each=60)
        self.x = torch.randint(256, (8, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        self.original = root / "original"
        assert softmask(*self.command(self.original, "first")[3:]).code == 0
        whole = Path(shutil.copytree(self.original, root / "whole"))
        assert softmask(*self.command(whole, "second")[3:]).code == 0
        self.before, self.after = self.answers(self.original), self.answers(whole)

    def command(self, model: Path, task: str) -> list[str]:
        made = ["--network", "mlp", "--width", "0.125", "--size", "28", "--channels", "1", "--set", "epochs=6"]
        images = str(self.digits / "train" / task)
        return [sys.executable, "-m", "softmask", "learn", str(model), images, *made, "--probe", "3"]

    def answers(self, folder: Path) -> dict[str, torch.Tensor]:
        model = ContinualModel.open(folder)
        return {name: model.probabilities(self.x, index) for index, name in enumerate(model.tasks)}

    def killed(self, folder: Path, moment: Callable[[Path], bool], delay: float) -> bool:
        """Whether the model is still the old one; asserts that it is either."""
        one_thread = {**environment(), "OMP_NUM_THREADS": "1"}  # as in this process: sums are rounded alike
        with subprocess.Popen(self.command(folder, "second"), env=one_thread, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + PATIENCE
            while process.poll() is None and time.monotonic() < deadline and not moment(folder):
                time.sleep(0.0002)
            time.sleep(delay)
            process.kill()
        found = self.answers(folder)
        expected = self.after if len(found) == 2 else self.before
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
        return len(found) == 1


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("kill"))


def has_begun(folder: Path) -> bool:
    return (folder / "lease.json").exists()


def writes(folder: Path) -> bool:
    return any(name.endswith(".tmp") and "lease" not in name for name in os.listdir(folder))


def has_written(folder: Path) -> bool:
    return (folder / "generation-000002.safetensors").exists()


def test_killed_while_learning_while_writing_and_before_the_end(case: Case, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(case.original, tmp_path / "model"))
    moments = [has_begun, writes, has_written]
    old = [case.killed(folder, moment, 0.0) for moment in moments if len(ContinualModel.open(folder).tasks) == 1]
    assert old[0], "the first kill comes long before the end"
    if old[-1]:  # not yet learned: the same command does it now, after all those kills
        assert softmask(*case.command(folder, "second")[3:]).code == 0
    assert case.answers(folder).keys() == case.after.keys()


@pytest.mark.slow
def test_killed_at_twenty_moments(case: Case, tmp_path: Path) -> None:
    generator, old = random.Random(5), 0
    for number in range(20):
        folder = Path(shutil.copytree(case.original, tmp_path / str(number)))
        moment = generator.choice([has_begun, writes, has_written])
        old += case.killed(folder, moment, generator.choice([0.0, generator.uniform(0, 0.5)]))
    assert 3 <= old <= 20
