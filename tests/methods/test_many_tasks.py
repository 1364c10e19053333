"""Every method but CAT learns many generated tasks in the layout of I-100: nothing breaks, all losses are finite.

`make bench NAME=stress` does it with all hundred tasks and compares time, memory and disk with the forecast.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.experiments.sequences import SEQUENCES, sequence, sequence_from
from softmask.learning.registry import METHODS
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence

NAME, TASKS, CLASSES = "generated-12", 12, 10


def generated(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
    generator = torch.Generator().manual_seed(seeds.order)
    made = []
    for _ in range(tasks):
        pictures = torch.randint(0, 256, (80, 3, 32, 32), generator=generator, dtype=torch.uint8)
        labels = torch.arange(80) % CLASSES
        made.append(tuple((pictures[start:end], labels[start:end]) for start, end in ((0, 40), (40, 60), (60, 80))))
    return sequence_from(NAME, made)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered for these tests alone."""
    SEQUENCES.names()
    monkeypatch.setattr(SEQUENCES, "_entries", dict(SEQUENCES._entries))
    sequence(NAME, tasks=TASKS, classes=CLASSES, description="generated")(generated)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS.names() if name != "cat"])
def test_learns_many_tasks(method: str, tmp_path: Path) -> None:
    changes = {"network.width": 1 / 16, "training.epochs": 1, "training.joint_epochs": 1, "training.batch": 20}
    done = run(make_config(method, NAME, preset="short", changes=changes), Store(tmp_path))
    epochs = done.events("epoch")
    assert epochs
    assert all(math.isfinite(event["train_loss"]) and math.isfinite(event["val_loss"]) for event in epochs)
    last = list(done.accuracies().values())[-1]
    assert sorted(last) == list(range(TASKS)), "every task is evaluated at the end"
