"""Replay buffers: training samples of past tasks, which are kept and drawn again; and batches of several tasks.

In such a batch every sample is judged by its own task's head.
"""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task


class ReplayBuffer(nn.Module):
    """Images, labels and tasks in buffers of full size, of which the first `count` are filled."""

    images: Tensor
    labels: Tensor
    tasks: Tensor
    count: Tensor

    def __init__(self, capacity: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("images", torch.zeros(capacity, *input_shape))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("tasks", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return int(self.count)

    @property
    def capacity(self) -> int:
        return len(self.labels)

    def add(self, task: Task) -> None:
        """Keep some of the task's training samples, normalised, drawn from torch's global generator."""
        raise NotImplementedError

    def put(self, places: slice | Tensor, task: Task, chosen: Tensor) -> None:
        """The chosen training samples of a task into these places."""
        train = task.train
        self.images[places] = Batches(train.images[chosen], train.labels[chosen], normalise=train.normalise).x.to(
            self.images.device
        )
        self.labels[places], self.tasks[places] = train.labels[chosen].to(self.labels.device), task.id

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and tasks of `size` samples without replacement, or of all where there are fewer."""
        chosen = torch.randperm(len(self), generator=generator)[:size].to(self.images.device)
        return self.images[chosen], self.labels[chosen], self.tasks[chosen]


class ClassBalancedBuffer(ReplayBuffer):
    """The same number of samples of each class, drawn at random; all of a class that has fewer."""

    def __init__(self, scenario: Scenario, per_class: int) -> None:
        super().__init__(per_class * sum(scenario.classes), scenario.input_shape)
        self.per_class = per_class

    def add(self, task: Task) -> None:
        for label in range(task.classes):
            members = (task.train.labels == label).nonzero().flatten()
            chosen = members[torch.randperm(len(members))[: self.per_class]]
            self.put(slice(len(self), len(self) + len(chosen)), task, chosen)
            self.count += len(chosen)


class ReservoirBuffer(ReplayBuffer):
    """At most `budget` samples in all, uniform over the training samples seen so far (Vitter, 1985, algorithm R).

    The memory stays the same however many tasks come; each new task takes places from the old ones.
    """

    seen: Tensor

    def __init__(self, scenario: Scenario, budget: int) -> None:
        super().__init__(budget, scenario.input_shape)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def add(self, task: Task) -> None:
        before, filled = int(self.seen), len(self)
        uniform = torch.rand(task.train.count, dtype=torch.float64).tolist()
        places: dict[int, int] = {}
        for sample, drawn in enumerate(uniform):
            # Sample n of the stream takes one of n places at random; those beyond the budget do not exist.
            place = filled if filled < self.capacity else int(drawn * (before + sample + 1))
            if place < self.capacity:
                places[place] = sample
                filled = max(filled, place + 1)
        self.put(torch.tensor([*places], dtype=torch.int64), task, torch.tensor([*places.values()], dtype=torch.int64))
        self.seen += task.train.count
        self.count.fill_(filled)


def own_head_logits(heads: nn.ModuleList, features: Tensor, tasks: Tensor) -> Tensor:
    """All heads' logits side by side, from one product; those of heads that are not the sample's own are -inf."""
    linear = [cast(nn.Linear, head) for head in heads]
    logits = F.linear(features, torch.cat([head.weight for head in linear]), torch.cat([head.bias for head in linear]))
    owners = torch.arange(len(heads), device=tasks.device).repeat_interleave(_sizes(heads, tasks.device))
    return logits.masked_fill(owners != tasks.unsqueeze(1), -math.inf)


def places(heads: nn.ModuleList, tasks: Tensor, labels: Tensor) -> Tensor:
    """Where each sample's label stands among the logits of all heads."""
    sizes = _sizes(heads, tasks.device)
    return (sizes.cumsum(0) - sizes)[tasks] + labels


def mixed_loss(heads: nn.ModuleList, features: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
    """The mean over all samples of each one's cross-entropy on its own head."""
    return F.cross_entropy(own_head_logits(heads, features, tasks), places(heads, tasks, labels))


def _sizes(heads: nn.ModuleList, device: torch.device) -> Tensor:
    return torch.tensor([cast(nn.Linear, head).out_features for head in heads], device=device)
