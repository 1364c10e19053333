"""MTL: joint training on all tasks, usually the upper reference.

One network with a head for each task, trained on batches that mix all tasks. Source: Konishi et al., ICML 2023.
Remembers between tasks: nothing; there is a single stage, which needs the data of all tasks at once.
Equations: the loss of a batch is the mean over its samples of the cross-entropy on the sample's own head; a batch has
640 images. There is one result, and no forward or backward transfer. The union of all tasks is shuffled once, since SGD
fails on data ordered by task; it is shuffled again in each epoch only if `training.shuffle` is set.
Cost: per image as plain training; the number of epochs over all tasks is `training.joint_epochs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.learning import (
    Batches,
    Cost,
    Method,
    Scenario,
    Step,
    Task,
    Training,
    derive,
    register,
    require_above_zero,
    search,
)
from softmask.learning.replay import mixed_loss, own_head_logits, places
from softmask.learning.task import sample_digest


@register("mtl")
class MTL(Method):
    title = "MTL"
    family = "reference"
    keeps_old_data = "all images"
    default_dropout = None
    dropout_source = "searched for SPG on each sequence and published by Konishi et al."

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        lr: float | None = search(None, low=0.05, high=0.5, log=True)
        """Learning rate; None means the training's. A batch is ten times the usual one, so another may be better.
        Default: the training's, which Konishi et al. use for every method."""

        def __post_init__(self) -> None:
            require_above_zero(self, "lr")

    def stages(self, tasks: Sequence[Task], training: Training) -> Sequence[Task]:
        merged = joined(tasks)
        seed = derive(self.scenario.seeds.batches, merged.name)
        mixed = replace(merged, train=merged.train.mixed(seed))
        return [mixed.batched(training.joint_batch, shuffle=training.shuffle, seed=seed)]

    def adapted(self, training: Training) -> Training:
        return replace(super().adapted(training), epochs=training.joint_epochs or training.epochs)

    def loss(self, step: Step) -> Tensor:
        tasks, labels = step.y.unbind(1)
        return mixed_loss(self.heads, self.backbone(step.x), tasks, labels)

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        tasks, labels = step.y.unbind(1)
        logits = own_head_logits(self.heads, self.backbone(step.x), tasks)
        right = places(self.heads, tasks, labels)
        return F.cross_entropy(logits, right), (logits.argmax(1) == right).sum()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(note="the data of all tasks are needed at once")


def joined(tasks: Sequence[Task]) -> Task:
    """One task that holds all; a label is a pair of task and label."""
    return Task(
        ids=tuple(task.id for task in tasks),
        name=f"joint {sample_digest(*([ord(letter) for letter in task.name] for task in tasks))}",
        classes=sum(task.classes for task in tasks),
        train=_union(tasks, lambda task: task.train),
        val=_union(tasks, lambda task: task.val),
    )


def _union(tasks: Sequence[Task], part: Callable[[Task], Batches]) -> Batches:
    parts = [part(task) for task in tasks]
    images = torch.cat([batches.images for batches in parts])
    labels = [
        torch.stack([torch.full_like(batches.labels, task.id), batches.labels], 1)
        for task, batches in zip(tasks, parts, strict=True)
    ]
    return Batches(images, torch.cat(labels), parts[0].size, normalise=parts[0].normalise, device=parts[0].device)
