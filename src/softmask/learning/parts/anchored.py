"""What EWC, EWC-GI and SI share: each parameter is pulled back to where the last task left it, by its importance."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from softmask.learning.method import Method, Step
from softmask.learning.parts.blocks import Tensors
from softmask.learning.parts.per_parameter import PerParameter
from softmask.learning.parts.pull import add_quadratic_pull, quadratic_penalty
from softmask.learning.parts.stability import Stability


class Anchored(Method):
    """Adds `stiffness / 2 * sum of importance * (parameter - anchor)^2`, over the backbone alone.

    Old heads need none: without momentum and weight decay they stay where they are; the new head has no importance yet.
    The settings hold `strength` and `penalty_in_validation`.
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
        """Here the learning rate and what it will meet are known for the first time."""
        self.stability = Stability.at(lr, self.stiffness, self.importance.tensors())
        self.stability.warn(self.title, f"strength {self.settings.strength:g}", lr)
        return super().make_optimizer(lr)

    def penalty(self, step: Step) -> Tensor | None:
        """Its value alone: the gradient is added after the backward pass."""
        return self.stiffness * quadratic_penalty(*self.penalty_terms()) if self.penalised() else None

    def penalised(self) -> bool:
        """A strength of zero adds nothing, not even rounding."""
        return self.stiffness > 0 and (self.training or self.settings.penalty_in_validation)

    def after_backward(self, step: Step) -> None:
        if self.penalised():
            add_quadratic_pull(*self.penalty_terms(), scale=self.stiffness)

    def penalty_terms(self) -> tuple[Tensors, Tensors, Tensors]:
        """Where parameters are, where they are pulled to, and how strongly."""
        return tuple(self.backbone.parameters()), self.anchor.tensors(), self.importance.tensors()
