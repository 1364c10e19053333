"""SupSup: a binary mask for each task over random weights that are never trained.

Every weight, heads included, is a random sign times a constant of its layer; a task only learns which weights of each
layer to use. Source: Wortsman, Ramanujan, Liu, Kembhavi, Rastegari, Yosinski and Farhadi, NeurIPS 2020, with the task
known in training and in test.
Remembers between tasks: one bit per weight and task. Scores exist for the current task only and are re-initialised for
each: there is no transfer, and the order of the tasks changes only the order of the results.
Gradients: a score gets (gradient of the effective weight) x weight x sign(score), as if its weight were selected
(straight-through).
Departures from the authors' code: no batch normalisation, which in their code makes the scale of the activations
irrelevant; therefore the constant is sqrt((1 - dropout on the layer's input) / (share fan_in)), which keeps that scale
constant under masking, pooling and dropout. All layers have the same share. Plain SGD, as for all methods of the
comparison, without weight decay; the learning rate of the scores is our choice and falls with the common schedule.
Parameters other than weights, such as those of group normalisation, are not trained either.
Cost: each step selects the largest scores of every layer, which takes about half as long as a step of plain training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.learning import (
    Backbone,
    Cost,
    Facts,
    Method,
    Scenario,
    Task,
    Training,
    derive,
    register,
    require_above_zero,
    require_share,
    search,
    sgd_with_two_rates,
)
from softmask.learning.device import isolated_randomness
from softmask.learning.masked_weights import (
    SavedMasks,
    largest,
    masked,
    other_parameters,
    seen_through,
    uniform_scores,
    weights_of,
    with_weights,
    without_biases,
)

HEAD = "head"


@register("supsup")
class SupSup(Method):
    title = "SupSup"
    family = "parameter isolation"
    grows_with_tasks = "masks"
    needs_layers = True
    never_forgets = True
    not_in_snapshot = ("masks", "backbone")

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        share: float = search(0.5, low=0.05, high=0.8)
        """Share of each layer's weights that a task uses. Default: the authors'."""
        score_rate: float = search(4.0, low=0.4, high=20.0, log=True)
        """Learning rate of the scores, as a factor of the training's. Gradients of scores are small, since each has its
        weight as a factor. Default: ours."""

        head: Literal["masked", "dense"] = "masked"
        """Whether a task's head is random and masked too, or dense, at the training's learning rate. Default: as in the
        authors' code."""

        def __post_init__(self) -> None:
            require_share(self, "share")
            require_above_zero(self, "score_rate")

    def build(self) -> None:
        self.backbone = without_biases(self.make_backbone())
        self.masked_head = self.settings.head == "masked"
        heads = self.scenario.heads(self.backbone.widths[-1])
        self.heads = without_biases(heads) if self.masked_head else heads
        weights = weights_of(self.backbone)
        for weight, drop in zip(weights.values(), self.dropped_before(len(weights)), strict=True):
            self.make_constant(weight, drop)
        for parameter in other_parameters(self.backbone):
            parameter.requires_grad_(False)
        if self.masked_head:
            of_heads = [self.head(task).weight for task in range(self.scenario.num_tasks)]
            for weight in of_heads:
                self.make_constant(weight, self.dropped_before_head())
            weights[HEAD] = max(of_heads, key=len)
        self.scores = nn.ParameterDict({name: uniform_scores(weight) for name, weight in weights.items()})
        self.masks = SavedMasks({name: weight.shape for name, weight in weights.items()}, self.scenario.num_tasks)

    def head(self, task: int) -> nn.Linear:
        return cast(nn.Linear, self.heads[task])

    def dropped_before(self, layers: int) -> list[float]:
        """The rate of dropout on the input of each layer; only blocks have some of ours."""
        if not isinstance(self.backbone, Backbone):
            return [0.0] * layers
        return [0.0, *(block.drop for block in self.backbone.blocks[:-1])]

    def dropped_before_head(self) -> float:
        return self.backbone.blocks[-1].drop if isinstance(self.backbone, Backbone) else 0.0

    @torch.no_grad()
    def make_constant(self, weight: Tensor, drop: float) -> None:
        """Replaces the weights by their signs, for good."""
        weight.sign_().mul_(math.sqrt((1 - drop) / (self.settings.share * weight[0].numel()))).requires_grad_(False)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.answer(x, task)[1]

    def answer(self, x: Tensor, task: int) -> tuple[Tensor, Tensor]:
        weights = weights_of(self.backbone) | ({HEAD: self.head(task).weight} if self.masked_head else {})
        if not self.training and self.masks.holds(task):
            saved = self.masks.load(task)
            effective = {name: masked(w, saved[name][: len(w)]) for name, w in weights.items()}
        else:
            effective = {name: self.chosen_part(w, self.scores[name][: len(w)]) for name, w in weights.items()}
        head = effective.pop(HEAD, None)
        features = with_weights(self.backbone, effective, x)
        return features, self.head(task)(features) if head is None else F.linear(features, head)

    def chosen_part(self, weight: Tensor, scores: Tensor) -> Tensor:
        return seen_through(weight, scores, self.chosen(scores))

    @torch.no_grad()
    def chosen(self, scores: Tensor) -> Tensor:
        """The mask of the current scores."""
        return largest(scores.abs(), self.kept(scores.numel()))

    def kept(self, entries: int) -> int:
        """How many of `entries` weights are selected."""
        dropped = (1 - self.settings.share) * entries  # 4095.999... of 20480, if the share is 0.8
        return entries - math.floor(dropped + 1e-6)

    def begin_task(self, task: Task) -> None:
        """New scores, and the head's signs, from a seed that depends on the task but not on its position in the
        sequence."""
        head = self.head(task.id)
        if not self.masked_head:
            super().begin_task(task)
        with isolated_randomness(), torch.no_grad():
            torch.manual_seed(derive(self.scenario.seeds.init, task.name))
            head.reset_parameters()
            if self.masked_head:
                self.make_constant(head.weight, self.dropped_before_head())
            for scores in self.scores.values():
                scores.copy_(uniform_scores(scores))

    def lr(self, training: Training) -> float:
        return training.lr * self.settings.score_rate

    def make_optimizer(self, lr: float) -> Optimizer:
        if self.masked_head:
            return super().make_optimizer(lr)
        return sgd_with_two_rates(self, self.heads.parameters(), lr, 1 / self.settings.score_rate)

    def starts_anew(self, task: Task) -> bool:
        return True

    def end_task(self, task: Task) -> Facts | None:
        classes = self.head(task.id).out_features
        chosen = {
            name: self.chosen(scores[:classes] if name == HEAD else scores) for name, scores in self.scores.items()
        }
        if self.masked_head:  # that of a head with fewer classes than the largest is filled up with zeros
            chosen[HEAD] = F.pad(chosen[HEAD], (0, 0, 0, len(self.scores[HEAD]) - classes))
        self.masks.save(task.id, chosen)
        return None

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.6, kept_copies=1 + scenario.num_tasks / 32, note="one bit per weight and task")

    @classmethod
    def learnable(cls, scenario: Scenario) -> int:
        """A score for each weight, for each task."""
        with torch.device("meta"):
            method = cls(scenario)
            shared = sum(weight.numel() for weight in weights_of(method.backbone).values())
            return scenario.num_tasks * shared + sum(weight.numel() for weight in method.heads.parameters())
