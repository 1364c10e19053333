"""PackNet: after each task small weights are pruned and freed for later tasks; the others are frozen.

A task is learned with all free weights. Then the smallest of these in each layer are pruned; the others are retrained
and frozen. Later tasks use the frozen weights and train the pruned ones. Source: Mallya and Lazebnik, CVPR 2018.
Remembers between tasks: the number of the task that owns each weight, whatever the number of tasks.
Equations: task u sees the weight W where 1 <= owner(W) <= u, and 0 elsewhere. After phase 1 of task t the share rho_t
of the free weights of each layer, those with the smallest |W|, becomes 0; by default rho_t = (T - t) / (T - t + 1),
which gives T tasks equal shares of the weights. Biases are trained in the first task only.
Guarantee: the outputs for old tasks stay the same, to the bit.
Departures: plain SGD without momentum; free weights are re-initialised before a task, where the authors' begin at 0;
old tasks are evaluated on masked copies, where the authors' code overwrites the weights; each of the two phases has its
own early stopping.
Cost: a step costs a twentieth more; the second phase adds half of the epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softmask.learning import (
    Cost,
    Facts,
    Fitter,
    Method,
    Scenario,
    Step,
    Task,
    Training,
    blocked_shares,
    register,
    require_above_zero,
    require_share,
    search,
)
from softmask.learning.masked_weights import largest, uniform_scores, weights_of
from softmask.learning.owned_weights import WeightOwners, freeze_biases, seen_features
from softmask.learning.training import scaled
from softmask.learning.unit_gates import keep_only


@register("packnet")
class PackNet(Method):
    title = "PackNet"
    family = "parameter isolation"
    needs_blocks = True
    never_forgets = True
    needs_sgd = True

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        pruned: float | None = None
        """Share of each layer's free weights that is pruned after a task; None gives all tasks equally many weights.
        Default: ours; the authors have 0.5 or 0.75, for three tasks."""
        retrain_rate: float = search(0.1, low=0.05, high=1.0, log=True)
        """Learning rate of the second phase, as a factor of the first. Default: the authors'."""
        retrain_epochs: float = 0.5
        """Maximum number of epochs of the second phase, as a share of the first. Default: the authors'."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method.
        The authors have 0.001 with momentum, from pretrained weights."""

        def __post_init__(self) -> None:
            require_above_zero(self, "retrain_rate", "lr")
            require_share(self, "retrain_epochs")
            if self.pruned is not None and not 0 < self.pruned < 1:
                raise ValueError(f"pruned must be above 0 and below 1, not {self.pruned}")

    owners: WeightOwners
    packed: Tensor
    """The number of tasks that own weights."""
    may_move: dict[Tensor, Tensor]

    def build(self) -> None:
        super().build()
        self.owners = WeightOwners({name: weight.shape for name, weight in weights_of(self.backbone).items()})
        self.register_buffer("packed", torch.zeros((), dtype=torch.int64))
        self.retrains = False

    def features(self, x: Tensor, task: int) -> Tensor:
        if task < self.packed:
            return seen_features(self.backbone, x, self.owners.seen_by(task))
        return self.backbone(x)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.retrains = False
        freeze_biases(self.backbone, task.id > 0)
        free = self.owners.free()
        if task.id > 0:
            self.reinitialise_free_weights(task, free)
        self.set_trainable(free)

    @torch.no_grad()
    def reinitialise_free_weights(self, task: Task, free: dict[str, Tensor]) -> None:
        """New random values: units with all incoming and outgoing weights 0 would never learn."""
        with self.own_randomness(task):
            for name, weight in weights_of(self.backbone).items():
                weight.copy_(torch.where(free[name], uniform_scores(weight), weight))

    def set_trainable(self, chosen: dict[str, Tensor]) -> None:
        weights = weights_of(self.backbone)
        self.may_move = {weights[name]: mask.float() for name, mask in chosen.items()}

    def adapted(self, training: Training) -> Training:
        own, settings = super().adapted(training), self.settings
        if not self.retrains:
            return own
        epochs = max(1, round(settings.retrain_epochs * own.epochs))
        return scaled(replace(own, epochs=epochs, first_epochs=None, warmup_epochs=0), own.lr * settings.retrain_rate)

    def learn(self, task: Task, fit: Fitter) -> None:
        fit(self, "train").run().restore_best()
        self.prune(task.id)
        self.retrains = True
        fit(self, "retrain").run().restore_best()

    @torch.no_grad()
    def prune(self, task: int) -> None:
        """The largest free weights of each layer become the task's own; the others become 0."""
        share, free = self.share_pruned(task), self.owners.free()
        chosen = {}
        for name, weight in weights_of(self.backbone).items():
            candidates = weight[free[name]].abs()
            chosen[name] = torch.zeros_like(weight, dtype=torch.bool)
            if count := len(candidates):
                # Rounded down, so that something is kept.
                chosen[name][free[name]] = largest(candidates, count - int(share * count)) == 1
            weight[free[name] & ~chosen[name]] = 0.0
        self.owners.claim(task, chosen)
        self.packed.fill_(task + 1)
        self.set_trainable(chosen)

    def share_pruned(self, task: int) -> float:
        left = self.scenario.num_tasks - task - 1
        return left / (left + 1) if self.settings.pruned is None else self.settings.pruned

    def after_backward(self, step: Step) -> None:
        keep_only(self.may_move)

    def end_task(self, task: Task) -> Facts:
        return {"blocked": blocked_shares(self.owners.used())}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.6, kept_copies=0.5, note="half of the epochs once more, to retrain")
