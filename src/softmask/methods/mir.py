"""MIR: replays those stored samples whose loss the next step would raise most.

Maximally interfered retrieval: as ER, but candidates are drawn first, and a virtual step on the new batch alone is
taken; the candidates whose loss it raises most are replayed. Source: Aljundi, Belilovsky et al., NeurIPS 2019, section
3.1 (ER-MIR, criterion MI-1).
Remembers between tasks: as ER, `budget` training images with their labels and tasks.
Equations: with the virtual weights w_v = w - lr * gradient of the cross-entropy of the batch, the candidates with the
largest loss(w_v) - loss(w) are added to the batch; the loss of the step is the mean cross-entropy over both, each
sample classified by its own task's head.
Departures: those of ER. The virtual step and the losses of the candidates are computed with dropout off, since its
noise would decide which samples are replayed. Ties keep the order of the draw.
Cost: from the second task on a step costs about six times that of plain training: the virtual step, two forward passes
of the candidates, and the replayed samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from softmask.learning import (
    Cost,
    ReplayMethod,
    Scenario,
    Step,
    evaluating,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.replay import Samples, own_head_logits, places
from softmask.methods.er import replayed_step


@register("mir")
class MIR(ReplayMethod):
    title = "MIR"

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        budget: int = 500
        """Samples stored in all, by reservoir sampling over all tasks; 0 is plain fine-tuning. Default: the
        authors' for CIFAR-10, 50 of each class."""
        replay_batch: int = 64
        """Samples replayed in each step. Default: as many as a batch of the
        training has, as the authors."""
        candidates: int = 320
        """Candidates drawn for each step; the `replay_batch` of them whose loss would rise most are replayed. Default:
        five times as many, as the authors."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "budget")
            require_above_zero(self, "replay_batch", "candidates", "lr")
            if self.candidates < self.replay_batch:
                raise ValueError(f"candidates must be at least replay_batch, {self.replay_batch}: {self.candidates}")

    def replay_loss(self, step: Step) -> Tensor:
        task = step.task.id
        suffering = self.most_interfered(step, self.memory.draw(self.settings.candidates, self.draws.generator(task)))
        return self.loss_of(suffering.after(step.x, step.y, task), task)

    def most_interfered(self, step: Step, candidates: Samples) -> Samples:
        """The candidates whose loss a step on the batch alone would raise most."""
        with evaluating(self):
            moved = self.virtual_weights(step)
            rise = self.losses(candidates, step.task.id, moved) - self.losses(candidates, step.task.id)
        worst = rise.argsort(descending=True, stable=True)[: self.settings.replay_batch]
        return Samples(*(each[worst] for each in candidates))

    def virtual_weights(self, step: Step) -> dict[str, Tensor]:
        """The backbone after a step on the batch alone. Old heads are not part of its loss, so they would not
        change."""
        weights = dict(self.backbone.named_parameters())
        with torch.enable_grad():
            loss = F.cross_entropy(self(step.x, step.task.id), step.y)
            gradients = torch.autograd.grad(loss, list(weights.values()))
        pairs = zip(weights.items(), gradients, strict=True)
        return {name: weight.detach() - step.lr * gradient for (name, weight), gradient in pairs}

    @torch.no_grad()
    def losses(self, samples: Samples, task: int, weights: dict[str, Tensor] | None = None) -> Tensor:
        """The cross-entropy of each sample, on other weights of the backbone if they are given."""
        backbone = self.backbone
        features = backbone(samples.images) if weights is None else functional_call(backbone, weights, samples.images)
        heads = self.heads[:task]
        logits = own_head_logits(heads, features, samples.tasks)
        return F.cross_entropy(logits, places(heads, samples.tasks, samples.labels), reduction="none")

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        # A batch's forward pass is a third of its step; candidates are five times a batch and pass forward twice.
        return Cost(
            step=replayed_step(scenario.num_tasks, passes=2 + 10 / 3), note=f"keeps {cls.Settings().budget:,} images"
        )
