"""GPM: gradients are projected away from the inputs that old tasks use.

Gradient projection memory: a change of a layer's weights that is orthogonal to all inputs of an old task leaves the
layer's output for that task as it was. Source: Saha, Garg and Roy, ICLR 2021, equations 5 to 9.
Remembers between tasks: for each layer the projector onto the directions in use, a square matrix as wide as its input,
whatever the number of tasks.
Equations: G <- G - G M M^T, for the gradient G [outputs, inputs] of each layer and its basis M. At the end of task t,
with R the inputs of the layer on 125 training images, the directions of largest energy outside M are added to it until
the share `threshold + rise * (t - 1)`, at most 0.999, of the energy of R is covered.
Departures: a bias is treated as the weight of an additional input that is always 1, and is projected with the others;
the authors have none. Other parameters, such as those of normalisation layers, are frozen after the first task. The
inputs of a convolution are those of all 125 images, where the authors take fewer. Dropout is off while inputs are
measured. The direction that crosses the threshold is added to the basis in every task; in the authors' code not in the
first.
Cost: one more matrix product per layer and step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softmask.core import SubspaceMask
from softmask.core.layer_inputs import layers_of
from softmask.learning import (
    Batches,
    Cost,
    Facts,
    Method,
    Scenario,
    Step,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)

MOST = 0.999
"""At a threshold of 1 every direction that occurred is blocked, and nothing more is learned."""


@register("gpm")
class GPM(Method):
    title = "GPM"
    family = "projection"
    needs_sgd = True
    default_dropout = (0.2, 0.5)
    dropout_source = "the authors' code, for this AlexNet"

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        threshold: float = search(0.97, low=0.85, high=0.99)
        """Share of the energy of the first task's inputs that is protected; 0 is plain fine-tuning, for all tasks.
        Default: the authors' for ten tasks of CIFAR-100."""
        rise: float = search(0.003, low=0.0, high=0.003)
        """By how much the threshold rises with every task, up to 0.999. Default: the authors' for ten tasks of
        CIFAR-100; they have 0.001 for twenty."""
        images: int = 125
        """Training images, drawn at random, on which inputs are measured. Default: the authors'."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method; the authors have 0.01, with batch normalisation."""

        def __post_init__(self) -> None:
            require_not_negative(self, "threshold", "rise")
            require_above_zero(self, "images", "lr")
            if self.threshold > 1:
                raise ValueError(f"threshold must be from 0 to 1, not {self.threshold}")

    def build(self) -> None:
        super().build()
        self.mask = self.make_mask()

    def make_mask(self) -> SubspaceMask:
        return SubspaceMask(self.backbone, strength=0.0, rule="gpm")

    def threshold(self, task: int) -> float:
        settings = self.settings
        return min(settings.threshold + settings.rise * task, MOST) if settings.threshold > 0 else 0.0

    def after_backward(self, step: Step) -> None:
        """For plain SGD, projecting the gradient is projecting the update."""
        self.mask.apply()

    def end_task(self, task: Task) -> Facts:
        self.mask.strength = self.threshold(task.id)
        if self.mask.strength > 0:
            self.mask.consolidate(self.measured_on(task))
        return {"free": self.mask.free()}

    def measured_on(self, task: Task) -> Iterable[tuple[Tensor, Tensor]]:
        train = task.train
        with self.own_randomness(task):
            chosen = torch.randperm(train.count)[: self.settings.images]
        return Batches(
            train.images[chosen], train.labels[chosen], train.size, normalise=train.normalise, device=train.device
        )

    def get_extra_state(self) -> dict[str, Any]:
        return self.mask.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.mask.load_state_dict(state)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        backbone = scenario.backbone()
        entries = sum(layer.width**2 for layer in layers_of(backbone)[0].values())
        copies = 2 * entries / sum(p.numel() for p in backbone.parameters())  # in float64
        return Cost(step=1.3, kept_copies=copies)
