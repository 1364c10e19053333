"""HAT: each task learns gates on units; weights between units in use are frozen.

Each task learns which units it needs; weights between two units that earlier tasks need are no longer updated. Source:
Serra, Suris, Miron and Karatzoglou, ICML 2018.
Remembers between tasks: one number per unit and task (the embedding of the gates), and which units are in use.
Gates: sigmoid(s e) in training, s rising from 1/s_max to s_max over each epoch; the loss adds the share of free units
that the task opens, times `sparsity`. The embedding's gradient is multiplied by s_max (cosh(s e) + 1) / (s (cosh(e) +
1)), which compensates for s.
Departures from the authors' code: outside training (in validation, in test and for protection) a gate is open exactly
if e > 0, so that nothing leaks through almost closed gates and old answers stay the same to the bit. `gates="soft"` is
the authors' version, which guarantees nothing. s reaches s_max with the last batch of an epoch, as the paper says. As
in their code, gradients are clipped at a joint norm of 10,000.
Cost: a step costs about a tenth more, whatever the number of tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    Cost,
    Facts,
    Method,
    Scenario,
    Step,
    Task,
    blocked_shares,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.unit_gates import between_used_units, gated, keep_only, scale_down

EMBEDDING_LIMIT = 6.0
COSH_LIMIT = 50.0


@register("hat")
class HAT(Method):
    title = "HAT"
    family = "parameter isolation"
    grows_with_tasks = "gates"
    default_dropout = (0.2, 0.5)
    dropout_source = "the authors of HAT, for this AlexNet"
    needs_blocks = True
    never_forgets = True
    needs_sgd = True
    clip = 1e4

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        sparsity: float = search(0.75, low=0.01, high=4.0, log=True)
        """Weight of the penalty on the share of free units that a task opens; it decides how much capacity is left for
        later tasks. Default: the authors'."""
        steepness: float = search(400.0, low=25.0, high=800.0, log=True)
        """s_max: the larger, the closer the gates are to a step function at the end of an epoch. Default: the
        authors'."""
        gates: Literal["hard", "soft"] = "hard"
        """Gates outside training: `hard`, open or closed, or `soft`, sigmoid(s_max e) as in the authors' code. Soft
        gates leak: where a gate is not fully open, a small part of the gradient passes, and old answers change a
        little. Default: ours, so that nothing is forgotten."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method.
        The authors have 0.05."""

        def __post_init__(self) -> None:
            require_above_zero(self, "steepness", "lr")
            require_not_negative(self, "sparsity")

    used: Tensor
    """Use of each unit by any task so far; with soft gates, the largest gate."""
    free_weights: dict[Tensor, Tensor]

    def build(self) -> None:
        super().build()
        units = sum(self.backbone.widths)
        self.embeddings = nn.ParameterList(torch.randn(units) for _ in self.scenario.classes)
        self.hard = self.settings.gates == "hard"
        self.register_buffer("used", torch.zeros(units, dtype=torch.bool if self.hard else torch.float32))

    # Gates of all layers in one vector

    def hard_gates(self, task: int) -> Tensor:
        return self.embeddings[task] > 0

    def gates(self, task: int) -> Tensor:
        """Outside training."""
        return self.hard_gates(task) if self.hard else self.soft_gates(task, progress=1.0)

    def soft_gates(self, task: int, progress: float) -> Tensor:
        return torch.sigmoid(self.scale(progress) * self.embeddings[task])

    def scale(self, progress: float) -> float:
        """s: rises over an epoch."""
        steepest = self.settings.steepness
        return 1 / steepest + (steepest - 1 / steepest) * progress

    def by_layer(self, units: Tensor) -> Sequence[Tensor]:
        return units.split(self.backbone.widths)

    def features(self, x: Tensor, task: int) -> Tensor:
        return gated(self.backbone, x, self.by_layer(self.gates(task)))

    # Learning a task

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for index, embedding in enumerate(self.embeddings):
            embedding.requires_grad_(index in task.ids)
        self.protect(self.used)

    def protect(self, used: Tensor) -> None:
        """From now on no weight between two of these units changes."""
        blocked = between_used_units(self.backbone, self.by_layer(used)) if used.any() else {}
        self.free_weights = {self.backbone.get_parameter(name): 1 - mask.float() for name, mask in blocked.items()}

    def loss(self, step: Step) -> Tensor:
        gates = self.soft_gates(step.task.id, step.progress)
        features = gated(self.backbone, step.x, self.by_layer(gates))
        return F.cross_entropy(self.heads[step.task.id](features), step.y) + self.opened(gates)

    def penalty(self, step: Step) -> Tensor:
        return self.opened(self.gates(step.task.id))

    def opened(self, gates: Tensor) -> Tensor:
        """The regulariser: the share of the units free so far that these gates open; 0 where not even one is free."""
        free = 1 - self.used.float()
        total = free.sum()
        return self.settings.sparsity * (gates * free).sum() / total.clamp(min=1) * (total >= 1)

    def after_backward(self, step: Step) -> None:
        keep_only(self.free_weights) if self.hard else scale_down(self.free_weights)
        embedding, scale = self.embeddings[step.task.id], self.scale(step.progress)
        annealed = (scale * embedding.detach()).clamp_(-COSH_LIMIT, COSH_LIMIT).cosh_().add_(1)
        assert embedding.grad is not None
        embedding.grad.mul_(annealed).mul_(self.settings.steepness / scale).div_(embedding.detach().cosh().add_(1))

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        self.embeddings[step.task.id].clamp_(-EMBEDDING_LIMIT, EMBEDDING_LIMIT)

    @torch.no_grad()
    def end_task(self, task: Task) -> Facts:
        torch.maximum(self.used, self.gates(task.id), out=self.used)
        blocked = between_used_units(self.backbone, self.by_layer(self.used))
        return {"blocked": blocked_shares(blocked), "open_units": self.hard_gates(task.id).float().mean().item()}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.1)
