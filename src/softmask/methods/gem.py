"""GEM: projects the gradient so that no step raises the loss of an old task on its stored samples.

Gradient episodic memory: a replay buffer holds a few samples of each past task. Where a step would raise the loss of
some of these tasks, the gradient is replaced by the nearest one that raises none. Source: Lopez-Paz and Ranzato,
NeurIPS 2017, equations 8 to 11 and algorithm 1; details from their code.
Remembers between tasks: 13 training images of each class seen so far.
Equations: G = the gradients, one row for each past task, of the mean loss of its samples on its own head, dropout off.
Where G g has a negative entry: g <- g + G^T v, with v >= margin of the smallest 1/2 v G G^T v + (G g) v, a quadratic
programme with one variable per past task, which is solved exactly. The gradients cover all parameters, including those
of old heads, so that old heads change.
Departures: a task has many epochs, so its samples are chosen at its end, uniformly within each class; the authors keep
the last samples of a single epoch. They add 0.001 to the diagonal of G G^T, which an exact solver does not need.
Cost: for each past task a step has one more backward pass, over all stored samples of that task, and holds one more
gradient: both grow with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    ClassBalancedBuffer,
    Cost,
    Method,
    Scenario,
    Step,
    Task,
    Uses,
    evaluating,
    register,
    require_above_zero,
    require_not_negative,
    search,
)

NOISE = 1e-6
"""Eigenvalues below this share of the largest are rounding errors: the matrix is a product of float32 vectors."""


@register("gem")
class GEM(Method):
    title = "GEM"
    family = "replay"
    needs_sgd = True
    moves_old_heads = True
    not_in_snapshot = ("memory",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        per_class: int = 13
        """Samples stored per class; 0 is plain fine-tuning. Default: that of A-GEM's authors, who use it for both
        methods on CIFAR-100; the authors of GEM store 256 per task, whatever its number of classes."""
        margin: float = search(0.5, choices=(0.0, 0.1, 0.5, 1.0))
        """Smallest weight of an old task's gradient in a projected step; above 0, such steps also lower the loss of old
        tasks. Default: the authors' for CIFAR-100, who call it memory strength."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method;
        the authors have 0.1, for one epoch in batches of ten."""

        def __post_init__(self) -> None:
            require_not_negative(self, "per_class", "margin")
            require_above_zero(self, "lr")

    def build(self) -> None:
        super().build()
        self.memory = ClassBalancedBuffer(self.scenario, self.settings.per_class)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if len(self.memory) > 0:
            for head in self.heads[: task.id]:
                head.requires_grad_(True)

    def after_backward(self, step: Step) -> None:
        if len(self.memory) > 0:
            trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
            project(trainable, self.reference_gradients(trainable), self.settings.margin)

    def reference_gradients(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A row for each past task: the gradient of the loss on its samples, as one vector, dropout off."""
        rows, memory = [], self.memory
        tasks = memory.tasks[: len(memory)]
        with evaluating(self):
            for task in tasks.unique().tolist():
                own = (tasks == task).nonzero().flatten()
                loss = F.cross_entropy(self(memory.images[own], task), memory.labels[own])
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                rows.append(as_vector(parameters, gradients))
        return torch.stack(rows)

    def end_task(self, task: Task) -> None:
        with self.own_randomness(task):
            self.memory.add(task)

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        return Uses(f"{settings.per_class} images a class", growth="images") if settings.per_class else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        kept, tasks = cls.Settings().per_class, scenario.num_tasks
        # Each of the past tasks' samples is in every step, beside a batch of about 64.
        replayed = sum(kept * sum(scenario.classes[:task]) / 64 for task in range(tasks)) / tasks
        images = kept * sum(scenario.classes)
        return Cost(
            step=1 + replayed, note=f"keeps {images:,} images and holds a gradient for each task by the last one"
        )


def as_vector(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """The gradients as one vector; a missing gradient is zero."""
    pairs = zip(parameters, gradients, strict=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in pairs])


@torch.no_grad()
def project(parameters: Sequence[nn.Parameter], references: Tensor, margin: float) -> None:
    """Equation 11 and `g + G^T v`, on `.grad`; does nothing if the step raises no old task's loss."""
    gradient = as_vector(parameters, [parameter.grad for parameter in parameters])
    harm = references @ gradient
    if (harm >= 0).all():
        return
    weights = smallest_quadratic(references @ references.T, harm, margin)
    moved = (gradient + weights @ references).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, moved, strict=True):
        parameter.grad = part.view_as(parameter)


def smallest_quadratic(matrix: Tensor, linear: Tensor, floor: float = 0.0) -> Tensor:
    """The `v >= floor` that minimises `1/2 v P v + q v`, for `P = G G^T` and `q = G g`.

    Solved as non-negative least squares in `u = v - floor`: with `P = A^T A`, the `u >= 0` that minimises `|A u - b|`,
    where `A^T b = -(q + P floor)`. Rows of G may be linearly dependent.
    """
    from scipy.optimize import nnls  # slow to import

    device, scale = matrix.device, float(matrix.diagonal().max())
    if scale == 0:
        return torch.full_like(linear, floor)
    p, q = (each.detach().cpu().double().numpy() / scale for each in (matrix, linear))
    values, vectors = np.linalg.eigh(p)
    kept = values > NOISE * values.max()
    root, directions = np.sqrt(values[kept]), vectors[:, kept].T
    right = -(directions @ (q + p.sum(1) * floor)) / root
    found, _ = nnls(root[:, None] * directions, right)
    return torch.from_numpy(found + floor).to(device, linear.dtype)
