"""MER: alternates steps on new and on stored samples, then moves the weights only part of the way (Reptile).

Meta-experience replay: after a short sequence of steps, on new samples and then on samples from a reservoir, the
weights move a part of the way from where they began to where the steps ended. This favours directions in which the
gradients of different samples agree (Reptile). Source: Riemer et al., ICLR 2019, algorithm 1; the order of the steps
from their code.
Remembers between tasks: `budget` training images with their labels and tasks, whatever the number of tasks.
Equations: from the weights w, `batches` times: from v = w, a step on the new batch and `replay_steps` steps on samples
from the reservoir lead to v'; within-batch update w <- v + beta (v' - v). Then, with w_0 the weights before the first
of them, across-batch update w <- w_0 + gamma (w - w_0). Each sample is classified by its own task's head; old heads are
trained further.
Departures: steps are taken on batches, where the authors take them on single examples, hundreds of them for each new
one. The first task, with nothing to replay, is plain training. As in ER, a task's samples enter the reservoir at its
end, since there are many epochs, and the best epoch is chosen by the validation data of the new task alone.
Cost: from the second task on a step costs `batches` * (1 + `replay_steps`) times that of plain training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    Cost,
    ReplayMethod,
    Scenario,
    Step,
    register,
    require_above_zero,
    require_not_negative,
    require_share,
    search,
)
from softmask.methods.er import replayed_step


@register("mer")
class MER(ReplayMethod):
    title = "MER"
    needs_sgd = True

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        budget: int = 500
        """Samples stored in all, by reservoir sampling over all tasks; 0 is plain fine-tuning. Default: the middle
        value of the authors, who compare 200, 500 and 5120."""
        replay_batch: int = 64
        """Samples in each step on the reservoir. Default: ours, as many as a batch of the training has."""
        replay_steps: int = 2
        """Steps on the reservoir after each step on a new batch. Default: ours, to bound the cost; the authors take 5
        to 100, on single examples."""
        batches: int = 1
        """Number of times the sequence of steps is repeated before the across-batch update. Default: the smallest of
        the authors' values, 1, 2, 5 and 10."""
        beta: float = search(0.3, choices=(0.03, 0.1, 0.3, 1.0))
        """Step size of the within-batch update; 1 goes all the way. Default: ours, from the authors' values: on D-5
        (preset `short`, seed 1) it forgets less than 1 does and learns as well."""
        gamma: float = search(1.0, choices=(0.1, 0.3, 1.0))
        """Step size of the across-batch update; 1 goes all the way. Default: 1, from the authors' values; with one
        sequence for each batch only the product with beta matters."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate of every step; None means the training's. Default: the training's, which Konishi et al. use for
        every method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "budget")
            require_above_zero(self, "replay_batch", "replay_steps", "batches", "lr")
            require_share(self, "beta")
            require_share(self, "gamma")

    def build(self) -> None:
        super().build()
        self.before: list[Tensor] = []

    def replay_loss(self, step: Step) -> Tensor:
        """The training loop's own step is the first one, on the new batch alone."""
        return F.cross_entropy(self(step.x, step.task.id), step.y)

    def after_backward(self, step: Step) -> None:
        if self.replays():
            self.before = copies(self.trainable())

    def after_step(self, step: Step) -> None:
        """The remaining steps of all sequences, and both updates."""
        if not self.replays():
            return
        start = self.before
        settings, weights, begun = self.settings, self.trainable(), start
        for batch in range(settings.batches):
            if batch > 0:
                begun = copies(weights)
                take_step(self.replay_loss(step), weights, step.lr)
            for _ in range(settings.replay_steps):
                take_step(self.loss_of(self.drawn(step), step.task.id), weights, step.lr)
            reptile_update(weights, begun, settings.beta)
        reptile_update(weights, start, settings.gamma)
        self.before = []

    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        settings = cls.Settings()
        passes = settings.batches * (1 + settings.replay_steps) - 1
        return Cost(step=replayed_step(scenario.num_tasks, passes), note=f"keeps {settings.budget:,} images")


def copies(weights: list[nn.Parameter]) -> list[Tensor]:
    return [weight.detach().clone() for weight in weights]


def take_step(loss: Tensor, weights: list[nn.Parameter], lr: float) -> None:
    """Plain SGD. A head without samples in the batch does not change."""
    gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.sub_(gradient, alpha=lr)


@torch.no_grad()
def reptile_update(weights: list[nn.Parameter], start: list[Tensor], share: float) -> None:
    """Reptile: moves the weights from `start` this share of the way to where they are. A share of 1 changes nothing."""
    if share < 1:
        for weight, before in zip(weights, start, strict=True):
            weight.copy_(before.lerp(weight, share))
