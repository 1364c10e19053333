"""TAG: RMSProp whose step sizes depend on the gradients of past tasks.

RMSProp whose denominator adds the squared gradients of past tasks, each weighted by how much that task's gradients
oppose the current ones: steps that would undo a past task become small, and steps that agree with it large. Source:
Malviya, Ravindran and Chandar, CoLLAs 2022; details from its authors' code.
Remembers between tasks: for each past task two numbers per parameter of the backbone, its second moment and its unit
first moment.
Equations, for each tensor: m <- 0.9 m + 0.1 g; v <- 0.99 v + 0.01 g^2, from zero in each task; similarity of a past
task = m / |m| . M_task; denominator = sqrt(exp(-b) v + sum of exp(-b * similarity) V_task) + 1e-8, in the first task
sqrt(v) + 1e-8; weight <- weight - rate * g / denominator. A direction of norm zero has similarity 0.
Departures: m and v are restored with the weights of the best epoch; the learning rate falls as for all methods, down to
1/250 (the authors train one epoch at a fixed rate). Each task has its own head, so a head has no past moments; the
masked logits of the authors' single output layer have the same effect.
Cost: memory grows by twice the backbone with every task, and so does the memory that a step reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.learning import (
    Cost,
    Method,
    PerParameter,
    Scenario,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.per_parameter import rows_of_block

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.99, 1e-8


@register("tag")
class TAG(Method):
    title = "TAG"
    family = "projection"
    grows_with_tasks = "gradient moments"
    not_in_snapshot = ("past_directions", "past_seconds")

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        contrast: float = search(5.0, low=1.0, high=7.0)
        """How much more an opposed task counts than a similar one; b in the paper. Default: the authors' for
        CIFAR-100."""
        lr: float = search(2.5e-4, low=1e-5, high=5e-3, log=True)
        """Learning rate; from the second task on steps are up to exp(b / 2) times as large. Default: the authors' for
        CIFAR-100."""

        def __post_init__(self) -> None:
            require_not_negative(self, "contrast")
            require_above_zero(self, "lr")

    def build(self) -> None:
        super().build()
        self.first, self.second = PerParameter(self), PerParameter(self)
        past_tasks = self.scenario.num_tasks - 1
        self.past_directions = PerParameter(self.backbone, stacked=past_tasks)
        self.past_seconds = PerParameter(self.backbone, stacked=past_tasks)
        self.past_tasks = 0

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.past_tasks = task.id
        self.first.zero_()
        self.second.zero_()

    def make_optimizer(self, lr: float) -> Optimizer:
        moments = {p: self.moments(name) for name, p in self.named_parameters() if p.requires_grad}
        own_weight = math.exp(-self.settings.contrast) if self.past_tasks else 1.0
        return TagRMSprop(moments, lr, own_weight, self.settings.contrast)

    def moments(self, name: str) -> Moments:
        """A head has no past moments."""
        first, second = self.first.by_name()[name], self.second.by_name()[name]
        if not name.startswith("backbone."):
            return Moments(first, second, first.new_empty(0, *first.shape), first.new_empty(0, *first.shape))
        inner = name.removeprefix("backbone.")
        past = [stack.by_name()[inner][: self.past_tasks] for stack in (self.past_directions, self.past_seconds)]
        return Moments(first, second, *past)

    @torch.no_grad()
    def end_task(self, task: Task) -> None:
        if task.id == self.scenario.num_tasks - 1:
            return  # nobody will ask for what comes after the last task
        firsts, seconds = self.first.by_name(), self.second.by_name()
        directions, past_seconds = self.past_directions.by_name(), self.past_seconds.by_name()
        for name in directions:
            first = firsts[f"backbone.{name}"]
            directions[name][task.id] = first / length(first)
            past_seconds[name][task.id] = seconds[f"backbone.{name}"]

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        past = scenario.num_tasks - 1
        note = f"memory grows with the tasks: two copies of the backbone for each past one, {2 * past} in the end"
        return Cost(step=1.2 + 0.01 * past, kept_copies=2 * past + 2, note=note)


@dataclass(frozen=True)
class Moments:
    """Of one parameter tensor: in the present task, and in past tasks, a row for each."""

    first: Tensor
    second: Tensor
    past_directions: Tensor
    past_seconds: Tensor


class TagRMSprop(Optimizer):
    """RMSProp with the squared gradients of past tasks in its denominator.

    Holds no state of its own: the moments are the method's buffers and are restored with the weights.
    """

    def __init__(self, moments: Mapping[nn.Parameter, Moments], lr: float, own_weight: float, contrast: float) -> None:
        super().__init__(list(moments), {"lr": lr})
        self.moments, self.own_weight, self.contrast = moments, own_weight, contrast

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update; `closure` may compute the loss and its gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter, moments in self.moments.items():
            if parameter.grad is not None:
                self.update(parameter, parameter.grad, moments)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, moments: Moments) -> None:
        """`weight <- weight - rate * gradient / denominator`, with all past tasks of a tensor at once."""
        moments.first.lerp_(gradient, 1 - FIRST_DECAY)
        weights, lr = self.past_weights(moments), float(self.param_groups[0]["lr"])
        rows = rows_of_block(parameter)
        pasts = moments.past_seconds.split(rows, dim=1)
        for weight, grad, second, past in zip(
            *(tensor.split(rows) for tensor in (parameter, gradient, moments.second)), pasts, strict=True
        ):
            second.mul_(SECOND_DECAY).addcmul_(grad, grad, value=1 - SECOND_DECAY)
            mixed = torch.addmv(second.flatten(), past.flatten(1).t(), weights, beta=self.own_weight)
            weight.addcdiv_(grad, mixed.sqrt_().add_(EPSILON).view_as(second), value=-lr)

    def past_weights(self, moments: Moments) -> Tensor:
        """`exp(-b * similarity)`: the more a past task's direction opposes the present one, the more it weighs."""
        similarity = moments.past_directions.flatten(1) @ moments.first.flatten() / length(moments.first)
        return torch.exp(-self.contrast * similarity)


def length(direction: Tensor) -> Tensor:
    """Never zero, so that a direction of norm zero divided by it stays zero."""
    return torch.linalg.vector_norm(direction).clamp_min(torch.finfo(direction.dtype).tiny)
