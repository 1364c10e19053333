"""Evaluation of a method: in eval mode, without gradients, with the fastest batch size."""

from __future__ import annotations

import torch

from softmask.core.answers import evaluating
from softmask.learning.method import Method, Step
from softmask.learning.task import Batches, Task

# Larger batches fall out of the cache, smaller ones leave the matrix kernels idle.
EVALUATION_BATCH = 128


def accuracy(method: Method, batches: Batches, task: int) -> float:
    """The accuracy, with the head of the task."""
    right = torch.zeros((), dtype=torch.int64, device=batches.device)
    with evaluating(method), torch.inference_mode():
        for x, y in batches.batched(EVALUATION_BATCH):
            right += (method(x, task).argmax(1) == y).sum()
    return right.item() / batches.count


def validate(method: Method, task: Task) -> tuple[float, float]:
    """The method's validation criterion, averaged over samples, and the accuracy."""
    total = torch.zeros((), device=task.val.device)
    right = torch.zeros((), dtype=torch.int64, device=task.val.device)
    with evaluating(method), torch.inference_mode():
        for x, y in task.val.batched(EVALUATION_BATCH):
            loss, correct = method.validate(Step(task, x, y))
            total += loss * len(y)
            right += correct
    return total.item() / task.val.count, right.item() / task.val.count
