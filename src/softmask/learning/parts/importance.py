"""The importance pass of SPG and of what borrows its importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.core import cross_head_importance, gradient_importance
from softmask.learning.method import Method
from softmask.learning.task import Task


@dataclass(frozen=True)
class Importances:
    """Importance through the task's own head, and the largest through old heads (empty without any)."""

    own: dict[str, Tensor]
    cross: dict[str, Tensor]

    def combined(self) -> dict[str, Tensor]:
        """Eq. 4."""
        return {n: torch.maximum(own, self.cross[n]) if self.cross else own for n, own in self.own.items()}


def task_importance(method: Method, task: Task, old_heads: Sequence[nn.Module], *, dropout: bool) -> Importances:
    """Eq. 1-4 on the task's training batches, under draws that belong to this method and task alone."""
    head = method.heads[task.id]
    with method.own_randomness(task):
        method.train(dropout)
        own = gradient_importance(
            method.backbone, task.train, [lambda x, y: F.cross_entropy(head(method.backbone(x)), y)]
        )
        cross = cross_head_importance(method.backbone, task.train, old_heads)
        method.eval()
    return Importances(own, cross)
