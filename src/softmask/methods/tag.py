"""TAG: task-based accumulated gradients.

RMSProp whose denominator adds the squared gradients of past tasks, each weighted by how much that task's direction
opposes the present one: steps that would undo a past task become small, those that agree with it large. Source:
Malviya, Ravindran and Chandar, CoLLAs 2022; details from its authors' code.
Remembers between tasks: for each past task two numbers per parameter of the backbone, its second moment and its unit
first moment.
Equations, for each tensor: m <- 0.9 m + 0.1 g; v <- 0.99 v + 0.01 g^2, from zero in each task; similarity of a past
task = m / |m| . M_task; denominator = sqrt(exp(-b) v + sum of exp(-b * similarity) V_task) + 1e-8, in the first task
sqrt(v) + 1e-8; weight <- weight - rate * g / denominator. A direction of norm zero has similarity 0.
Departures: m and v go back with the weights to the best epoch; the rate falls as for all methods, down to 1/250 (the
authors train one epoch at a fixed rate). With a head for each task, a head has no past moments, which is what masked
logits give in the authors' single output layer.
Cost: memory grows by twice the backbone with every task, and a step by the reading of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from softmask.learning.method import Cost, Method, require_above_zero, require_not_negative, search
from softmask.learning.method_registry import register
from softmask.learning.parts.per_parameter import PerParameter
from softmask.learning.parts.tag_rmsprop import Moments, TagRMSprop, length
from softmask.learning.scenario import Scenario
from softmask.learning.task import Task


@register("tag")
class TAG(Method):
    title = "TAG"
    not_in_snapshot = ("past_directions", "past_seconds")

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        contrast: float = search(5.0, low=1.0, high=7.0)
        """How much more an opposed task weighs than a similar one: the authors' b, 5 for CIFAR-100."""
        lr: float = search(2.5e-4, low=1e-5, high=5e-3, log=True)
        """Learning rate. The authors' for CIFAR-100: from the second task on steps grow up to exp(b / 2) times."""

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
        """A head has nothing of past tasks."""
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
