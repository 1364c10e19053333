"""The Fisher information of a task, used by EWC and BECAME."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.core import fisher_importance
from softmask.learning.method import Method
from softmask.learning.task import Task, avoid_singleton_batch


def task_fisher(method: Method, task: Task, batch: int, *, dropout: bool) -> dict[str, Tensor]:
    """The task's Fisher information at the current weights, with random draws of this method and task alone."""
    head = method.heads[task.id]
    batches = task.train.batched(avoid_singleton_batch(method, batch, task.train.count))
    with method.own_randomness(task), torch.enable_grad():
        method.train(dropout)
        fisher = fisher_importance(method.backbone, batches, lambda x, y: F.cross_entropy(head(method.backbone(x)), y))
        method.eval()
    return fisher
