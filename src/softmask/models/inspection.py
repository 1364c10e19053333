"""Inspecting a model: its tasks, its free capacity, and how its answers to kept samples change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.learning.task import Task
from softmask.models.description import KnownTask, ModelConfig
from softmask.models.folder import ModelFolder, ModelFolderError, read_checked
from softmask.storage.state_file import write_state

LITTLE_CAPACITY = 0.1
UNLABELLED = -1
"""The label of kept samples without known classes."""
Answer = Callable[[Tensor, int], Tensor]
"""A function from inputs to the probabilities of a task's classes."""


@dataclass(frozen=True)
class Drift:
    """How the answers to the kept samples of a task have changed since it was learned."""

    task: str
    samples: int
    accuracy_then: float | None
    """None for samples without labels."""
    accuracy_now: float | None
    changed: float
    """Share of samples whose predicted class has changed."""
    moved: float
    """Mean absolute change of the probabilities."""

    @property
    def curve(self) -> tuple[float, float]:
        """Accuracy when learned and now; for unlabelled samples, the agreement with the answers when learned."""
        if self.accuracy_then is None or self.accuracy_now is None:
            return 1.0, 1.0 - self.changed
        return self.accuracy_then, self.accuracy_now


@dataclass(frozen=True)
class Inspection:
    """Tasks, importance per layer, free capacity and size of a model."""

    path: str
    network: str
    method: str
    input_shape: tuple[int, ...]
    parameters: int
    bytes: int
    tasks: Sequence[KnownTask]
    importance: dict[str, float]
    """Mean by layer; empty for a method without a soft mask."""
    free_capacity: float | None
    blocked: float | None
    """Share of parameters with importance exactly 1."""
    drift: Sequence[Drift] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


TASK_COLUMNS = ("task", "classes", "samples", "epochs", "accuracy when learned", "free capacity after it", "learned")
DRIFT_COLUMNS = ("task", "kept samples", "accuracy then", "accuracy now", "answers changed", "probabilities moved")


def summary_line(found: Inspection) -> str:
    """Network, method and size, in one line."""
    shape = " x ".join(map(str, found.input_shape))
    return (
        f"{found.network} for inputs of {shape}, method {found.method}, {found.parameters:,} parameters, "
        f"{found.bytes:,} bytes on disk"
    )


def task_rows(tasks: Sequence[KnownTask]) -> list[tuple[str | int, ...]]:
    """One row of `TASK_COLUMNS` per task."""
    return [
        (t.name, ", ".join(t.classes), t.samples, t.epochs, percent(t.accuracy), percent(t.free_capacity), t.learned)
        for t in tasks
    ]


def drift_rows(drift: Sequence[Drift]) -> list[tuple[str | int, ...]]:
    """One row of `DRIFT_COLUMNS` per task with kept samples."""
    return [
        (
            d.task,
            d.samples,
            percent(d.accuracy_then),
            percent(d.accuracy_now),
            percent(d.changed),
            f"{d.moved:.4f}",
        )
        for d in drift
    ]


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def capacity_warning(tasks: Sequence[KnownTask]) -> str | None:
    """A warning before the free capacity is used up; None while there is enough, or for a method without a mask."""
    free = [task.free_capacity for task in tasks if task.free_capacity is not None]
    if not free:
        return None
    # The next task may leave the same share of the free capacity as the last one did.
    expected = free[-1] ** 2 / free[-2] if len(free) > 1 and free[-2] else free[-1]
    if min(free[-1], expected) >= LITTLE_CAPACITY:
        return None
    return (
        f"only {100 * free[-1]:.0f} % of the capacity is free (mean over parameters), so new tasks will be learned "
        "slowly or badly; a wider network (--width) has more"
    )


Kept = tuple[Tensor, Tensor, Tensor]
"""Inputs, labels and answers of kept samples."""


def keep_probe(
    folder: ModelFolder, number: int, answer: Answer, task: Task, place: int, count: int, earlier: Kept | None = None
) -> int:
    """Keeps up to `count` validation samples with the current answers, after earlier ones; returns how many."""
    rows = torch.linspace(0, task.val.count - 1, min(count, task.val.count)).round().to(torch.int64)
    inputs, labels = task.val.images[rows], task.val.labels[rows]
    kept: Kept = (inputs, labels, answer(inputs, place) if count else torch.empty(0, task.classes))
    if earlier is not None:
        then = F.pad(earlier[2], (0, task.classes - earlier[2].shape[1]))
        kept = (torch.cat([earlier[0], inputs]), torch.cat([earlier[1], labels]), torch.cat([then, kept[2]]))
    return write_probe(folder, number, *kept)


def write_probe(folder: ModelFolder, number: int, inputs: Tensor, labels: Tensor, answers: Tensor) -> int:
    """Keeps these samples with the current answers; returns how many."""
    write_state(folder.probe(number), {"inputs": inputs, "labels": labels, "answers": answers.clone()})
    return len(labels)


def measure_drift(folder: ModelFolder, config: ModelConfig, answer: Answer) -> list[Drift]:
    if not any(task.probe for task in config.tasks):
        raise SoftmaskError(f"{folder.path} kept no samples: learn with --probe N (probe=N) to keep some of each task")
    found = []
    for index, task in enumerate(config.tasks):
        if task.probe:
            inputs, labels, then = read_probe(folder, config, index)
            now = answer(inputs, index)
            then = F.pad(then, (0, now.shape[1] - then.shape[1]))  # of classes that came later, nothing was said
            best_then, best_now = then.argmax(1), now.argmax(1)
            labelled = bool((labels != UNLABELLED).all())
            found.append(
                Drift(
                    task=task.name,
                    samples=len(labels),
                    accuracy_then=(best_then == labels).double().mean().item() if labelled else None,
                    accuracy_now=(best_now == labels).double().mean().item() if labelled else None,
                    changed=(best_then != best_now).double().mean().item(),
                    moved=(then - now).abs().mean().item(),
                )
            )
    return found


def read_probe(folder: ModelFolder, config: ModelConfig, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and the answers when they were kept."""
    task, file = config.tasks[index], folder.probe(config.numbers[index])
    failure: ModelFolderError | None = None
    for kind in (torch.uint8, torch.float32):
        expected = {
            "inputs": torch.empty((task.probe, *config.input_shape), dtype=kind, device="meta"),
            "labels": torch.empty(task.probe, dtype=torch.int64, device="meta"),
            "answers": torch.empty((task.probe, len(task.classes)), device="meta"),
        }
        try:
            state = read_checked(file, expected)
            return state["inputs"], state["labels"], state["answers"]
        except ModelFolderError as error:
            failure = failure or error
    assert failure is not None
    raise failure
