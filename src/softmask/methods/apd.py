"""APD: each task's weights are shared weights times a mask of its own, plus a sparse difference of its own.

Additive parameter decomposition: when the shared weights change while a task is learned, the differences of old tasks
are adjusted so that the old tasks' weights stay the same. An L1 penalty keeps the differences sparse, so the shared
weights change where old tasks need little adjustment. Source: Yoon, Kim, Yang and Hwang, ICLR 2020; details from their
code.
Remembers between tasks: the shared weights, and for every task a mask and a bias for each unit and a difference for
each weight.
Equations: theta_t = sigma * sigmoid(v_t) + tau_t. Loss = cross-entropy of theta_t + sparsity * sum over i <= t of
|tau_i| + fidelity / 2 * sum over i < t of (theta_i* - sigma * sigmoid(v_i) - tau_i)^2, where theta_i* are the weights
of task i as task t begins. For a given sigma the optimal tau_i of an old task is theta_i* - sigma * sigmoid(v_i), moved
towards 0 by sparsity / fidelity; with it, the penalty on a distance d of sigma * sigmoid(v_i) from theta_i* has the
gradient clip(fidelity * d, -sparsity, sparsity). A step takes this gradient for sigma and moves tau_t towards 0 by rate
* sparsity. Outside training, entries of tau up to `sparsity` are 0.
Guarantee: none that is exact. With every new task a weight of an old one moves by at most sparsity / fidelity +
sparsity.
Departures: differences of old tasks always have their optimal values, where the authors train them with Adam (plain SGD
would diverge where learning rate times fidelity exceeds 2). No weight decay. tau_t begins at 0 and sigma twice as
large, so that the first theta is that of a plain network. The best epoch is chosen by the cross-entropy alone. The
authors' grouping of differences, which saves memory, is left out.
Cost: a step goes through the weights of every old task once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from softmask.learning import (
    Cost,
    Facts,
    Method,
    PerParameter,
    Scenario,
    Step,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.masked_weights import weights_of
from softmask.learning.owned_weights import freeze_biases


@register("apd")
class APD(Method):
    title = "APD"
    family = "parameter isolation"
    grows_with_tasks = "differences of weights"
    needs_blocks = True
    needs_sgd = True
    not_in_snapshot = ("differences",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        sparsity: float = search(4e-4, low=1e-5, high=1e-2, log=True)
        """Strength of the L1 penalty on the differences, for each entry. Default: the authors' for ten tasks; they have
        6e-4 for twenty."""
        fidelity: float = search(100.0, low=1.0, high=1e3, log=True)
        """Strength of the penalty on changes of an old task's weights; with 0 the old tasks follow the shared weights.
        Default: the authors'."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method.
        The authors have Adam at 0.001."""

        def __post_init__(self) -> None:
            require_not_negative(self, "sparsity", "fidelity")
            require_above_zero(self, "lr")

    learned: Tensor
    """The number of tasks with a stored difference."""

    def build(self) -> None:
        super().build()
        freeze_biases(self.backbone, frozen=True)  # in their place stand those of the tasks
        with torch.no_grad():
            for weight in weights_of(self.backbone).values():
                weight.mul_(2)
        layers = (block.layer for block in self.backbone.blocks)
        units = torch.cat([layer.bias.detach() for layer in layers if layer.bias is not None])
        self.masks = nn.ParameterList(torch.zeros_like(units) for _ in self.scenario.classes)
        self.biases = nn.ParameterList(units.clone() for _ in self.scenario.classes)
        self.difference = nn.ParameterDict({n: torch.zeros_like(w) for n, w in weights_of(self.backbone).items()})
        self.differences = PerParameter(self.difference, stacked=self.scenario.num_tasks)
        self.register_buffer("learned", torch.zeros((), dtype=torch.int64))
        self.targets: list[dict[str, Tensor]] = []
        """The weights of every old task when the current task began."""

    # Weights of a task

    def features(self, x: Tensor, task: int) -> Tensor:
        biases = self.biases[task].split(self.backbone.widths)
        shared, own = self.shared(task), self.own(task)
        parameters = {f"{name}.layer.weight": shared[name] + own[name] for name in shared}
        parameters |= {f"{name}.layer.bias": bias for name, bias in zip(shared, biases, strict=True)}
        return functional_call(self.backbone, parameters, (x,))

    def shared(self, task: int) -> dict[str, Tensor]:
        """sigma * sigmoid(v)."""
        gates = torch.sigmoid(self.masks[task]).split(self.backbone.widths)
        weights = weights_of(self.backbone)
        return {
            name: weight * gate.view(-1, *[1] * (weight.dim() - 1))
            for (name, weight), gate in zip(weights.items(), gates, strict=True)
        }

    def own(self, task: int) -> dict[str, Tensor]:
        """tau; outside training without its small entries."""
        if task < self.learned:
            return {name: stacked[task] for name, stacked in self.differences.by_name().items()}
        if self.training:
            return dict(self.difference.items())
        return {name: self.without_small(difference) for name, difference in self.difference.items()}

    def without_small(self, difference: Tensor) -> Tensor:
        return torch.where(difference.abs() > self.settings.sparsity, difference, 0.0)

    # Learning a task

    @torch.no_grad()
    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for each in (self.masks, self.biases):
            for index, parameter in enumerate(each):
                parameter.requires_grad_(index == task.id)
        if task.id > 0:
            self.biases[task.id].copy_(self.biases[task.id - 1])
        for difference in self.difference.values():
            difference.zero_()
        self.targets = [self.weights(old) for old in range(task.id)]

    def weights(self, task: int) -> dict[str, Tensor]:
        shared, own = self.shared(task), self.own(task)
        return {name: shared[name] + own[name] for name in shared}

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        sparsity, fidelity, weights = self.settings.sparsity, self.settings.fidelity, weights_of(self.backbone)
        for old, target in enumerate(self.targets):
            gates = torch.sigmoid(self.masks[old]).split(self.backbone.widths)
            for (name, weight), gate in zip(weights.items(), gates, strict=True):
                assert weight.grad is not None
                gate = gate.view(-1, *[1] * (weight.dim() - 1))
                away = (weight * gate).sub_(target[name])
                weight.grad.add_(away.mul_(fidelity).clamp_(-sparsity, sparsity).mul_(gate))

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        for difference in self.difference.values():
            difference.copy_(towards_zero(difference, step.lr * self.settings.sparsity))

    @torch.no_grad()
    def end_task(self, task: Task) -> Facts:
        sparsity, fidelity = self.settings.sparsity, self.settings.fidelity
        kept = self.differences.by_name()
        limit = sparsity / fidelity if fidelity > 0 else math.inf
        drift = 0.0
        for old, target in enumerate(self.targets):
            for name, shared in self.shared(old).items():
                kept[name][old] = self.without_small(towards_zero(target[name] - shared, limit))
                drift = max(drift, (shared + kept[name][old] - target[name]).abs().max().item())
        for name, difference in self.difference.items():
            kept[name][task.id] = self.without_small(difference)
        self.learned.fill_(task.id + 1)
        self.targets = []
        filled = [(stacked[: task.id + 1] != 0).double().mean().item() for stacked in kept.values()]
        return {"drift": drift, "differences": dict(zip(kept, filled, strict=True))}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        tasks = scenario.num_tasks
        return Cost(
            step=1.2 + 0.1 * tasks, kept_copies=tasks, note="a copy of the weights for each task, two while learning"
        )


def towards_zero(values: Tensor, by: float) -> Tensor:
    """Soft thresholding: entries of at most this size become exact zeros."""
    return values.sign() * (values.abs() - by).clamp(min=0)
