"""Penalties on the distance of parameters from an anchor: their values, their gradients, and when SGD can follow them.

Gradients are computed by hand: autograd would go through all parameters a dozen times and allocate as much memory each
time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from softmask.learning.method import Method, Step
from softmask.learning.per_parameter import PerParameter, Tensors, blocks, dot, gradients_of, total

# A step multiplies the distance to the anchor by 1 - lr * curvature: beyond this it grows.
LIMIT = 2.0


@torch.no_grad()
def quadratic_penalty(parameters: Tensors, anchors: Tensors, curvatures: Tensors) -> Tensor:
    """`1/2 * sum of curvature * (parameter - anchor)^2`, without a gradient."""
    terms = []
    for parameter, anchor, curvature in blocks(parameters, anchors, curvatures):
        away = parameter - anchor
        terms.append(dot(away * curvature, away))
    return total(terms) / 2


@torch.no_grad()
def add_quadratic_gradient(parameters: Tensors, anchors: Tensors, curvatures: Tensors, scale: float) -> None:
    """Adds the gradient of `scale` times `quadratic_penalty` to `.grad`."""
    for gradient, parameter, anchor, curvature in blocks(gradients_of(parameters), parameters, anchors, curvatures):
        gradient.add_((parameter - anchor).mul_(curvature), alpha=scale)


@torch.no_grad()
def absolute_penalty(parameters: Tensors, anchors: Tensors, slopes: Tensors) -> Tensor:
    """`sum of slope * |parameter - anchor|`, without a gradient."""
    every = blocks(parameters, anchors, slopes)
    return total([dot((parameter - anchor).abs_(), slope) for parameter, anchor, slope in every])


@torch.no_grad()
def add_absolute_gradient(parameters: Tensors, anchors: Tensors, slopes: Tensors, scale: float) -> None:
    """Adds the gradient of `scale` times `absolute_penalty` to `.grad`; at the anchor it is zero."""
    for gradient, parameter, anchor, slope in blocks(gradients_of(parameters), parameters, anchors, slopes):
        gradient.addcmul_((parameter - anchor).sign_(), slope, value=scale)


@dataclass(frozen=True)
class Stability:
    """Whether plain SGD can follow a quadratic penalty: learning rate times curvature, over all penalised parameters.

    Known before the first step.
    """

    penalty_rate_largest: float = 0.0
    penalty_rate_above_2: float = 0.0
    """Share of the parameters above the limit."""

    @classmethod
    def at(cls, lr: float, scale: float, curvatures: Iterable[Tensor]) -> Stability:
        """For a penalty of `scale / 2 * sum of curvature * distance^2`."""
        factor, largest, above, entries = lr * scale, 0.0, 0, 0
        for curvature in curvatures:
            largest = max(largest, factor * curvature.max().item())
            above += int((curvature * factor > LIMIT).sum())
            entries += curvature.numel()
        return cls(largest, above / entries)

    def warn(self, title: str, strength: str, lr: float) -> Stability:
        """Only a warning: a run may survive a few entries above the limit, and the learning rate falls."""
        if self.penalty_rate_largest > LIMIT:
            warnings.warn(
                f"{title} with {strength} may diverge at a learning rate of {lr:g}: learning rate times curvature "
                f"reaches {self.penalty_rate_largest:.3g} and is above {LIMIT:g}, where steps overshoot, for "
                f"{self.penalty_rate_above_2:.2%} of the parameters. Lower the strength or the learning rate.",
                stacklevel=2,
            )
        return self

    def facts(self) -> dict[str, float]:
        return asdict(self)


class QuadraticPenaltyMethod(Method):
    """EWC, EWC-GI, SI and MAS: adds `stiffness / 2 * sum of importance * (parameter - anchor)^2` over the backbone.

    The anchor is the value after the last task. Old heads need no penalty: without momentum and weight decay they stay
    where they are; the new head has no importance yet. The settings hold `strength` and `penalty_in_validation`.
    """

    not_in_snapshot = ("anchor", "importance")
    stiffness_of_strength: ClassVar[float] = 1.0

    def build(self) -> None:
        super().build()
        self.anchor, self.importance = PerParameter(self.backbone), PerParameter(self.backbone)
        self.anchor.copy_(self.backbone.parameters())
        self.stability = Stability()

    @property
    def stiffness(self) -> float:
        return self.stiffness_of_strength * float(self.settings.strength)

    def make_optimizer(self, lr: float) -> Optimizer:
        """Here the learning rate and the importance it will meet are known for the first time."""
        self.stability = Stability.at(lr, self.stiffness, self.importance.tensors())
        self.stability.warn(self.title, f"strength {self.settings.strength:g}", lr)
        return super().make_optimizer(lr)

    def penalty(self, step: Step) -> Tensor | None:
        """The value alone: the gradient is added after the backward pass."""
        return self.stiffness * quadratic_penalty(*self.penalty_terms()) if self.penalised() else None

    def penalised(self) -> bool:
        """A strength of zero adds nothing, not even rounding errors."""
        return self.stiffness > 0 and (self.training or self.settings.penalty_in_validation)

    def after_backward(self, step: Step) -> None:
        if self.penalised():
            add_quadratic_gradient(*self.penalty_terms(), scale=self.stiffness)

    def penalty_terms(self) -> tuple[Tensors, Tensors, Tensors]:
        """Parameters, their anchors and their importance."""
        return tuple(self.backbone.parameters()), self.anchor.tensors(), self.importance.tensors()
