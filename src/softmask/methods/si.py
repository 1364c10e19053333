"""SI: a quadratic penalty weighted by each weight's share in lowering past losses.

Synaptic intelligence: each parameter is penalised for its squared distance from its value after the last task, weighted
by its share in lowering the losses of past tasks, summed over their training. Source: Zenke, Poole and Ganguli, ICML
2017, equations 3 to 5; details from its authors' code (pathint).
Remembers between tasks: the last weights of the backbone and their importance; while a task is learned, one more number
per parameter, which is restored with the weights of the best epoch.
Equations: loss = cross-entropy + strength * sum of importance * (weight - anchor)^2, without one half. Each step adds
-(gradient of the cross-entropy alone) * (actual move) to the path integral; at the end of a task importance <- max(0,
importance + path / ((weight - anchor)^2 + damping)).
Departures: the move is taken as the learning rate times the whole gradient, which for plain SGD it is.
Cost: a step costs about a sixth more; no pass at task ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softmask.learning import (
    Cost,
    Facts,
    PerParameter,
    QuadraticPenaltyMethod,
    Scenario,
    Step,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.per_parameter import blocks, gradients_of


@register("si")
class SI(QuadraticPenaltyMethod):
    title = "SI"
    family = "regularisation"
    stiffness_of_strength = 2.0  # the penalty has no one half

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(0.1, low=1e-3, high=10.0, log=True)
        """Regularisation strength; 1 weighs past and current losses alike. Default: the authors' for CIFAR."""
        damping: float = search(0.1, choices=(1e-3, 1e-2, 1e-1))
        """Keeps the importance of a parameter that hardly moved finite. Default: the larger of the authors' two values,
        0.1 and 0.001; they use the latter with Adam, and at a learning rate of 0.25 plain SGD cannot follow the penalty
        that it puts on a few parameters."""
        penalty_in_validation: bool = True
        """Whether the best epoch is chosen with the penalty or by cross-entropy alone. Default: as in EWC."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. The lower it is, the stronger a penalty plain SGD can follow.
        Default: the training's, which Konishi et al. use for every method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "damping", "lr")

    def build(self) -> None:
        super().build()
        self.path = PerParameter(self.backbone)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.path.zero_()

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Equation 3: the gradient is that of the cross-entropy alone, the move includes the penalty."""
        gradients, path = gradients_of(self.backbone.parameters()), self.path.tensors()
        torch._foreach_addcmul_(path, gradients, gradients, value=step.lr)
        if self.penalised():
            for integral, gradient, weight, anchor, importance in blocks(path, gradients, *self.penalty_terms()):
                force = (weight - anchor).mul_(importance)
                integral.addcmul_(gradient, force, value=step.lr * self.stiffness)
                gradient.add_(force, alpha=self.stiffness)

    @torch.no_grad()
    def end_task(self, task: Task) -> Facts:
        for path, weight, anchor, importance in zip(self.path.tensors(), *self.penalty_terms(), strict=True):
            # Clamped after adding: a negative contribution of this task may lower the importance to earlier ones.
            importance.add_(path / ((weight - anchor).square_() + self.settings.damping)).clamp_(min=0)
        self.anchor.copy_(self.backbone.parameters())
        return self.stability.facts()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.15, kept_copies=3)
