"""Kept samples of a task with the answers of the day on which it was learned: do the answers change?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.learning.task import Task
from softmask.models.description import ModelConfig
from softmask.models.folder import ModelFolder, ModelFolderError, read_checked
from softmask.models.inspection import Drift
from softmask.storage.state_file import write_state

Answer = Callable[[Tensor, int], Tensor]
"""Probabilities of a task's classes for some inputs."""


def keep_probe(folder: ModelFolder, answer: Answer, task: Task, count: int) -> int:
    """Writes down evenly chosen validation samples; tells how many there were."""
    rows = torch.linspace(0, task.val.count - 1, min(count, task.val.count)).round().to(torch.int64)
    inputs, labels = task.val.images[rows], task.val.labels[rows]
    state = {"inputs": inputs, "labels": labels, "answers": answer(inputs, task.id).clone()}
    write_state(folder.probe(task.id), state)
    return len(rows)


def measure_drift(folder: ModelFolder, config: ModelConfig, answer: Answer) -> list[Drift]:
    if not any(task.probe for task in config.tasks):
        raise SoftmaskError(f"{folder.path} kept no samples: learn with --probe N (probe=N) to keep some of each task")
    found = []
    for index, task in enumerate(config.tasks):
        if task.probe:
            inputs, labels, then = _read(folder, config, index)
            now = answer(inputs, index)
            best_then, best_now = then.argmax(1), now.argmax(1)
            found.append(
                Drift(
                    task=task.name,
                    samples=len(labels),
                    accuracy_then=(best_then == labels).double().mean().item(),
                    accuracy_now=(best_now == labels).double().mean().item(),
                    changed=(best_then != best_now).double().mean().item(),
                    moved=(then - now).abs().mean().item(),
                )
            )
    return found


def _read(folder: ModelFolder, config: ModelConfig, index: int) -> tuple[Tensor, Tensor, Tensor]:
    task, file = config.tasks[index], folder.probe(index)
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
