"""WSN: a subnetwork for each task; weights of earlier subnetworks are reused but frozen.

Weights and a score for each weight are learned together; in every layer, the share of weights with the largest scores
is the task's subnetwork. Weights of earlier subnetworks may be selected again but do not change. Source: Kang, Mina,
Madjid, Yoon, Hasegawa-Johnson, Hwang and Yoo, ICML 2022.
Remembers between tasks: one bit per weight and task, and the scores, which carry over from task to task.
Gradients: a weight is updated where it is selected and no earlier task has selected it; every score gets (gradient of
the effective weight) x weight x sign(score), as if its weight were selected (straight-through).
Departures from the authors' code: the stored mask is computed from the scores of the best epoch, not taken from the
last training batch; no batch normalisation, which in their code normalises a test image by the statistics of its test
batch; instead the initial weights are larger by 1 / sqrt(share), since a mask lets only that share of a layer's weights
pass. Ties are broken so that the number of selected weights is exact. Plain SGD, as for all methods of the comparison;
the learning rate of the scores falls with that of the weights. Parameters other than weights, such as those of group
normalisation, are learned with the first task and then frozen.
Cost: each step selects the largest scores of every layer, which takes about half as long as a step of plain training.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
    require_share,
    search,
    sgd_with_two_rates,
)
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
from softmask.learning.unit_gates import keep_only


@register("wsn")
class WSN(Method):
    title = "WSN"
    family = "parameter isolation"
    grows_with_tasks = "masks"
    default_dropout = (0.2, 0.5)
    dropout_source = "the authors' code, for this AlexNet"
    needs_layers = True
    never_forgets = True
    needs_sgd = True
    not_in_snapshot = ("masks",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        share: float = search(0.5, low=0.05, high=0.7)
        """Share of each layer's weights that a task uses. Default: the authors'."""
        score_rate: float = search(1.0, low=0.3, high=100.0, log=True)
        """Learning rate of the scores, as a factor of that of the weights. With few epochs it must be far above 1;
        otherwise a later task hardly leaves the frozen subnetwork of the first. Default: one learning rate for both."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: ours: at 0.25 the larger initial weights make the loss
        unstable."""

        def __post_init__(self) -> None:
            require_share(self, "share")
            require_above_zero(self, "score_rate", "lr")

    free: dict[Tensor, Tensor]

    def build(self) -> None:
        self.backbone = without_biases(self.make_backbone())
        self.heads = without_biases(self.scenario.heads(self.backbone.widths[-1]))
        weights = weights_of(self.backbone)
        with torch.no_grad():
            for weight in weights.values():
                weight.div_(self.settings.share**0.5)
        self.scores = nn.ParameterDict({name: uniform_scores(weight) for name, weight in weights.items()})
        self.masks = SavedMasks({name: weight.shape for name, weight in weights.items()}, self.scenario.num_tasks)

    def features(self, x: Tensor, task: int) -> Tensor:
        weights = weights_of(self.backbone)
        if not self.training and self.masks.holds(task):
            effective = {name: masked(weights[name], mask) for name, mask in self.masks.load(task).items()}
        else:
            chosen = self.chosen()
            effective = {name: seen_through(w, self.scores[name], chosen[name]) for name, w in weights.items()}
        return with_weights(self.backbone, effective, x)

    @torch.no_grad()
    def chosen(self) -> dict[str, Tensor]:
        """The mask of the current scores."""
        return {name: largest(scores.abs(), self.kept(scores.numel())) for name, scores in self.scores.items()}

    def kept(self, entries: int) -> int:
        """How many of `entries` weights are selected."""
        return entries - round((1 - self.settings.share) * (entries - 1))

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        for parameter in other_parameters(self.backbone):
            parameter.requires_grad_(0 in task.ids)
        weights = weights_of(self.backbone)
        # Where the union is 1 an earlier task uses the weight.
        self.free = {weights[name]: 1 - used for name, used in self.masks.union().items()}
        self.first_choice = self.chosen()

    def make_optimizer(self, lr: float) -> Optimizer:
        return sgd_with_two_rates(self, self.scores.parameters(), lr, self.settings.score_rate)

    def after_backward(self, step: Step) -> None:
        keep_only(self.free)

    def end_task(self, task: Task) -> Facts:
        chosen = self.chosen()
        self.masks.save(task.id, chosen)
        flipped = {name: (mask != self.first_choice[name]).float().mean().item() for name, mask in chosen.items()}
        return {"blocked": blocked_shares(self.masks.union()), "flipped": flipped}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=1.6, kept_copies=1 + scenario.num_tasks / 32, note="one bit per weight and task")

    @classmethod
    def learnable(cls, scenario: Scenario) -> int:
        """The scores are not counted, since they are not needed once the masks are known."""
        with torch.device("meta"):
            method = cls(scenario)
            return sum(p.numel() for part in (method.backbone, method.heads) for p in part.parameters())
