"""BECAME's merging for any method: the mean of a protected and an unconstrained solution, weighted by curvature.

    @register("gpm-became")
    class GPMBecame(MergingMethod, GPM):
        title = "GPM+BECAME"

Source: Li, Lu, Dai, Huang, Ding and Lu, ICML 2025. A task is learned twice: first by the wrapped method, which gives
the solution a, then from there without protection, which gives b. Near a the loss of all old tasks is about
1/2 (w - a)^T P (w - a), near b that of the new task 1/2 (w - b)^T F (w - b), with the Fisher information F of the task
and the sum P of those of the old ones, both diagonal. On the line a + share * (b - a) their sum is least at

    share = sum of F (b - a)^2 / sum of (P + F) (b - a)^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.learning.fisher import task_fisher
from softmask.learning.fit import Fitter
from softmask.learning.method import Facts, Method, Step
from softmask.learning.per_parameter import PerParameter, Tensors, dot, total
from softmask.learning.task import Task
from softmask.learning.training import Training, scaled


class MergingMethod(Method):
    """List it before the wrapped method among the bases of a class. The new head is merged together with the backbone.
    During the unconstrained training, the wrapped method's loss, gradient and update hooks and its optimizer are
    disabled; its `features` and `end_task` remain. Fisher information is computed for the backbone under the task's
    head: a method with other features overrides `fisher`.
    """

    fisher_batch: ClassVar[int] = 20
    """Images over which a gradient is averaged before it is squared, as in EWC."""
    free_rate: ClassVar[float] = 0.1
    """Learning rate of the unconstrained training, as a factor: both losses are approximated by parabolas between the
    solutions, so these must not lie far apart."""
    not_in_snapshot: ClassVar[tuple[str, ...]] = ("precision",)

    def build(self) -> None:
        super().build()
        self.precision = PerParameter(self.backbone)
        """The sum of the Fisher information of all tasks that were learned."""
        self.is_free = False
        self.share = 0.0

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.is_free = False

    def adapted(self, training: Training) -> Training:
        own = super().adapted(training)
        return scaled(own, own.lr * self.free_rate) if self.is_free else own

    def learn(self, task: Task, fit: Fitter) -> None:
        super().learn(task, fit)
        if task.id == 0:  # nothing to protect
            return
        moving = [*self.backbone.parameters(), *self.heads[task.id].parameters()]
        protected = [parameter.detach().clone() for parameter in moving]
        self.is_free = True
        fit(self, "free").run().restore_best()
        self.is_free = False
        self.merge(task, moving, protected)

    @torch.no_grad()
    def merge(self, task: Task, moving: list[nn.Parameter], protected: list[Tensor]) -> None:
        fisher = tuple(self.fisher(task).values())
        away = [p - before for p, before in zip(moving, protected, strict=True)]
        self.share = merged_share(fisher, self.precision.tensors(), tuple(away[: len(fisher)]))
        for parameter, before, distance in zip(moving, protected, away, strict=True):
            parameter.copy_(before + self.share * distance)

    def fisher(self, task: Task) -> dict[str, Tensor]:
        return task_fisher(self, task, self.fisher_batch, dropout=False)

    def end_task(self, task: Task) -> Facts:
        facts = super().end_task(task) or {}
        for kept, new in zip(self.precision.tensors(), self.fisher(task).values(), strict=True):
            kept.add_(new)
        return facts | ({"share_of_free_solution": self.share} if task.id > 0 else {})

    # The wrapped method's hooks are disabled during the unconstrained training

    def loss(self, step: Step) -> Tensor:
        return Method.loss(self, step) if self.is_free else super().loss(step)

    def penalty(self, step: Step) -> Tensor | None:
        return None if self.is_free else super().penalty(step)

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        return Method.validate(self, step) if self.is_free else super().validate(step)

    def after_backward(self, step: Step) -> None:
        if not self.is_free:
            super().after_backward(step)

    def after_step(self, step: Step) -> None:
        if not self.is_free:
            super().after_step(step)

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        return {} if self.is_free else super().update_scale()

    def make_optimizer(self, lr: float) -> Optimizer:
        return Method.make_optimizer(self, lr) if self.is_free else super().make_optimizer(lr)


def merged_share(new: Tensors, old: Tensors, away: Tensors) -> float:
    """The share of the unconstrained solution, from 0 to 1; 1 where both curvatures are zero."""
    gain = total([dot(fisher * distance, distance) for fisher, distance in zip(new, away, strict=True)])
    loss = total([dot(fisher * distance, distance) for fisher, distance in zip(old, away, strict=True)])
    return float(gain / (gain + loss)) if gain + loss > 0 else 1.0
