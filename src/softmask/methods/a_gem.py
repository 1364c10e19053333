"""A-GEM: stores a few samples of old tasks and projects out gradients that would raise their loss.

Averaged gradient episodic memory: a replay buffer holds a few samples of every past class; where a step would raise
their average loss, that part of the gradient is removed. Source: Chaudhry, Ranzato, Rohrbach and Elhoseiny, ICLR 2019,
equation 11; details from its authors' code.
Remembers between tasks: 13 training images of each class seen so far, or a reservoir of fixed size (`budget`).
Equations: g_ref = gradient, dropout off, of the mean loss of 256 samples of past tasks, each classified by its own
task's head; where g . g_ref < 0: g <- g - (g . g_ref / g_ref . g_ref) g_ref, over all parameters as one vector. The
reference gradient also covers the old heads, so the projection changes them.
Departures: a task has many epochs, so its samples are chosen at its end, uniformly within each class; the authors keep
the last samples of a single epoch. The distribution is the same. If a class has fewer images, all of them are stored.
Cost: a step costs about five times that of plain training, whatever the number of tasks; memory grows with the classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softmask.learning import (
    ClassBalancedBuffer,
    Cost,
    Draws,
    Method,
    ReplayBuffer,
    ReservoirBuffer,
    Scenario,
    Step,
    Task,
    Uses,
    evaluating,
    new_field,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.per_parameter import inner_product
from softmask.learning.replay import mixed_loss


@register("a-gem")
class AGEM(Method):
    title = "A-GEM"
    family = "replay"
    needs_sgd = True
    moves_old_heads = True
    not_in_snapshot = ("memory",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        per_class: int = 13
        """Samples stored per class. Default: the authors' for CIFAR-100; Konishi et al. do not state theirs."""
        budget: int | None = new_field(None)
        """Samples stored in all, by reservoir sampling over all tasks, whatever the number of classes; None stores
        `per_class` samples per class. Default: None, as the authors."""
        reference_batch: int = 256
        """Samples of the replay buffer whose loss may not rise, drawn anew for each step. Default: the authors'."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method;
        the authors have 0.03, for one epoch in batches of ten."""

        def __post_init__(self) -> None:
            require_not_negative(self, "per_class")
            require_above_zero(self, "reference_batch", "budget", "lr")

    def build(self) -> None:
        super().build()
        budget = self.settings.budget
        self.memory: ReplayBuffer = (
            ClassBalancedBuffer(self.scenario, self.settings.per_class)
            if budget is None
            else ReservoirBuffer(self.scenario, budget)
        )
        self.draws = Draws(self.scenario.seeds.batches, type(self).__name__)

    def begin_task(self, task: Task) -> None:
        for index, head in enumerate(self.heads):
            head.requires_grad_(index <= task.id)

    def after_backward(self, step: Step) -> None:
        if len(self.memory) == 0:
            return
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        project(trainable, self.reference_gradients(trainable, step.task.id))

    def reference_gradients(self, parameters: Sequence[nn.Parameter], task: int) -> Sequence[Tensor | None]:
        """Gradients of the loss on the replay buffer, dropout off; None for parameters that it does not depend on."""
        images, labels, tasks = self.memory.draw(self.settings.reference_batch, self.draws.generator(task))
        with evaluating(self):
            loss = mixed_loss(self.heads[:task], self.backbone(images), tasks, labels)
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    def end_task(self, task: Task) -> None:
        with self.own_randomness(task):
            self.memory.add(task)

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        if settings.budget is not None:
            return Uses(old_data=f"{settings.budget} images")
        return Uses(f"{settings.per_class} images a class", growth="images") if settings.per_class else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        settings, tasks = cls.Settings(), scenario.num_tasks
        *before, images = (settings.per_class * sum(scenario.classes[:task]) for task in range(tasks + 1))
        # A buffer that is smaller than the reference batch is used whole.
        reference = sum(min(1.0, kept / settings.reference_batch) for kept in before) / tasks
        return Cost(step=1 + 4 * reference, note=f"keeps {images:,} images by the last task")


@torch.no_grad()
def project(parameters: Sequence[nn.Parameter], reference: Sequence[Tensor | None]) -> None:
    """Equation 11, on `.grad`. A missing gradient counts as zero; the projection may give it a value."""
    known = [(p, ref) for p, ref in zip(parameters, reference, strict=True) if ref is not None]
    shared = [(p.grad, ref) for p, ref in known if p.grad is not None]
    overlap = inner_product(*zip(*shared, strict=True))
    if overlap >= 0:
        return
    references = [ref for _, ref in known]
    share = (overlap / inner_product(references, references)).item()
    for parameter, ref in known:
        parameter.grad = ref.mul(-share) if parameter.grad is None else parameter.grad.sub_(ref, alpha=share)
