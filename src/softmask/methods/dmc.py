"""DMC: the old model and a model of the new task are distilled into one, on unlabelled auxiliary images.

A model of the new task is trained without regard to the old tasks. Then a network is trained to reproduce the logits of
both models, each with its own heads, on unlabelled auxiliary images. Source: Zhang et al., WACV 2020 (deep model
consolidation).
Remembers between tasks: only the network. While a task is learned, both the old model and the new one are kept.
Auxiliary images: synthetic "dead leaves" (overlapping discs), generated from the run's seed. They contain
no data of any task, so no test image can be among them. The authors take photographs of other classes from ImageNet.
Equations: loss of the consolidation = mean over auxiliary images and classes of (z - target)^2, where z are the logits
of all heads so far; the target of an old head is the old model's logits less their mean over the head's classes, that
of the new head the new model's in the same way.
Departures: a head for each task, so that the mean is taken head by head; the new model begins with the weights of the
old one, and the consolidated model with those of the new one. The authors have a fixed number of epochs for the
consolidation; here it has the number of the training and stops early on held-out auxiliary images. It uses Adam.
Cost: from the second task on, each task is trained twice, the second time with both teachers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from softmask.learning import (
    Cost,
    Draws,
    Fitter,
    Method,
    Scenario,
    Step,
    Task,
    Training,
    register,
    require_above_zero,
    search,
)
from softmask.learning.seeds import derive
from softmask.learning.training import scaled

HELD_OUT = 0.1
"""Share of the auxiliary images on which the best epoch of the consolidation is chosen."""
LEAVES = 40
"""Discs in an auxiliary image."""
SMALLEST, LARGEST = 0.05, 0.4
"""Radii, as shares of the image's smaller side; small ones are more frequent, as in 1 / r^3."""


@register("dmc")
class DMC(Method):
    title = "DMC"
    family = "regularisation"
    other_data = "synthetic images"
    moves_old_heads = True
    needs_sgd = True

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        auxiliary: int = 2000
        """Auxiliary images. Default: ours; the authors take all of ImageNet's at 32 x 32."""
        consolidation_rate: float = search(1e-3, low=1e-4, high=1e-2, log=True)
        """Learning rate of Adam in the consolidation. Default: that of Adam."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate of the new model; None means the training's. Default: the training's, which Konishi et al. use
        for every method."""

        def __post_init__(self) -> None:
            require_above_zero(self, "consolidation_rate", "lr")
            if self.auxiliary < 10:
                raise ValueError(f"auxiliary must be at least 10, not {self.auxiliary}")

    def build(self) -> None:
        super().build()
        self.draws = Draws(self.scenario.seeds.batches, type(self).__name__)
        self.consolidates = False
        self.images = self.targets = torch.empty(0)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.consolidates = False
        self.old = copy.deepcopy((self.backbone, self.heads)) if task.id > 0 else None

    def learn(self, task: Task, fit: Fitter) -> None:
        fit(self, "new").run().restore_best()
        if self.old is None:
            return
        self.images = dead_leaves(self.settings.auxiliary, self.scenario.input_shape, self.scenario.seeds.init)
        self.images = self.images.to(task.train.device)
        self.targets = self.double_targets(task.id)
        for head in self.heads[: task.id]:
            head.requires_grad_(True)
        self.consolidates = True
        fit(self, "consolidate").run().restore_best()
        self.consolidates = False
        self.old, self.images, self.targets = None, torch.empty(0), torch.empty(0)

    @torch.no_grad()
    def double_targets(self, new: int) -> Tensor:
        """[images, classes of all heads so far]: the logits of the old model's heads and of the new model's head."""
        assert self.old is not None
        backbone, heads = self.old
        backbone.eval()
        self.eval()
        parts = []
        for images in self.images.split(128):
            old = centred(heads[:new], backbone(images))
            parts.append(torch.cat([old, centred([self.heads[new]], self.backbone(images))], 1))
        return torch.cat(parts)

    def adapted(self, training: Training) -> Training:
        own = super().adapted(training)
        if not self.consolidates:
            return own
        return scaled(replace(own, first_epochs=None, warmup_epochs=0), self.settings.consolidation_rate)

    def make_optimizer(self, lr: float) -> Optimizer:
        if not self.consolidates:
            return super().make_optimizer(lr)
        return Adam([parameter for parameter in self.parameters() if parameter.requires_grad], lr)

    @property
    def held_out(self) -> int:
        return int(HELD_OUT * len(self.images))

    def loss(self, step: Step) -> Tensor:
        if not self.consolidates:
            return super().loss(step)
        rest = len(self.images) - self.held_out
        chosen = torch.randint(rest, (len(step.y),), generator=self.draws.generator(step.task.id)) + self.held_out
        return self.distance(chosen.to(self.images.device), step.task.id)

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        loss, right = super().validate(step)
        if not self.consolidates:
            return loss, right
        return self.distance(torch.arange(self.held_out, device=self.images.device), step.task.id), right

    def distance(self, chosen: Tensor, new: int) -> Tensor:
        features = self.backbone(self.images[chosen])
        logits = torch.cat([head(features) for head in self.heads[: new + 1]], 1)
        return (logits - self.targets[chosen]).square().mean()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(fits=2, kept_copies=1, note="synthetic images are drawn for every task")


def centred(heads: Sequence[nn.Module] | nn.ModuleList, features: Tensor) -> Tensor:
    """The logits of each head less their mean over its classes."""
    logits = [head(features) for head in heads]
    return torch.cat([each - each.mean(1, keepdim=True) for each in logits], 1)


def dead_leaves(count: int, shape: tuple[int, int, int], *seed: int | str) -> Tensor:
    """Synthetic images [count, channels, height, width]: discs of random colours that cover each other.

    Their edges, sizes and occlusions follow the statistics of natural images (Lee, Mumford and Huang, 2001); networks
    learn useful features from them (Baradad et al., NeurIPS 2021). Mean 0 and standard deviation 1; the same for the
    same seed on every machine.
    """
    channels, height, width = shape
    draws = torch.Generator().manual_seed(derive("dead leaves", *seed))
    images = torch.randn(count, channels, 1, 1, generator=draws).expand(count, *shape).clone()
    rows, columns = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    for _ in range(LEAVES):
        top, left, size = torch.rand(3, count, 1, 1, generator=draws)
        # The inverse of the distribution of radii.
        radius = (SMALLEST**-2 + size * (LARGEST**-2 - SMALLEST**-2)) ** -0.5 * min(height, width)
        inside = (rows - top * height) ** 2 + (columns - left * width) ** 2 <= radius**2
        colour = torch.randn(count, channels, 1, 1, generator=draws)
        images = torch.where(inside[:, None], colour, images)
    return (images - images.mean()) / images.std()
