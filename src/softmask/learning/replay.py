"""Replay buffers with training samples of past tasks, and batches of several tasks, in which every sample is classified
by its own task's head.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task


class Samples(NamedTuple):
    """Samples of several tasks."""

    images: Tensor
    labels: Tensor
    tasks: Tensor

    def after(self, images: Tensor, labels: Tensor, task: int) -> Samples:
        """These samples behind a batch of one task."""
        first = torch.full_like(labels, task)
        return Samples(
            torch.cat([images, self.images]), torch.cat([labels, self.labels]), torch.cat([first, self.tasks])
        )


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

    def add(self, task: Task) -> Tensor:
        """Stores some of the task's training samples, normalised, drawn from torch's global generator. Returns their
        rows.
        """
        raise NotImplementedError

    def put(self, places: slice | Tensor, task: Task, chosen: Tensor) -> None:
        """Stores the chosen training samples of a task in these rows."""
        train = task.train
        self.images[places] = Batches(train.images[chosen], train.labels[chosen], normalise=train.normalise).x.to(
            self.images.device
        )
        self.labels[places], self.tasks[places] = train.labels[chosen].to(self.labels.device), task.id

    def pick(self, size: int, generator: torch.Generator) -> Tensor:
        """The rows of `size` samples drawn without replacement, or of all if there are fewer."""
        return torch.randperm(len(self), generator=generator)[:size].to(self.images.device)

    def at(self, places: Tensor) -> Samples:
        return Samples(self.images[places], self.labels[places], self.tasks[places])

    def draw(self, size: int, generator: torch.Generator) -> Samples:
        return self.at(self.pick(size, generator))


class ClassBalancedBuffer(ReplayBuffer):
    """The same number of random samples for each class; all samples of a class that has fewer."""

    def __init__(self, scenario: Scenario, per_class: int) -> None:
        super().__init__(per_class * sum(scenario.classes), scenario.input_shape)
        self.per_class = per_class

    def add(self, task: Task) -> Tensor:
        before = len(self)
        for label in range(task.classes):
            members = (task.train.labels == label).nonzero().flatten()
            chosen = members[torch.randperm(len(members))[: self.per_class]]
            self.put(slice(len(self), len(self) + len(chosen)), task, chosen)
            self.count += len(chosen)
        return torch.arange(before, len(self))


class ReservoirBuffer(ReplayBuffer):
    """At most `budget` samples in all, uniform over the training samples seen so far (Vitter, 1985, algorithm R).

    Its size does not depend on the number of tasks; each new task replaces samples of old ones. With `answers`, the
    logits of each sample's own head can be stored with it, at the front of a row.
    """

    seen: Tensor
    answers: Tensor

    def __init__(self, scenario: Scenario, budget: int, *, answers: bool = False) -> None:
        super().__init__(budget, scenario.input_shape)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        if answers:
            self.register_buffer("answers", torch.zeros(budget, max(scenario.classes)))

    def add(self, task: Task) -> Tensor:
        before, filled = int(self.seen), len(self)
        uniform = torch.rand(task.train.count, dtype=torch.float64).tolist()
        taken: dict[int, int] = {}
        for sample, drawn in enumerate(uniform):
            # Sample n of the stream takes one of n places at random; those beyond the budget do not exist.
            place = filled if filled < self.capacity else int(drawn * (before + sample + 1))
            if place < self.capacity:
                taken[place] = sample
                filled = max(filled, place + 1)
        places, chosen = (torch.tensor([*each], dtype=torch.int64) for each in (taken.keys(), taken.values()))
        self.put(places, task, chosen)
        self.seen += task.train.count
        self.count.fill_(filled)
        return places


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


def own_logits(heads: nn.ModuleList, logits: Tensor, tasks: Tensor) -> Tensor:
    """From the logits of all heads those of each sample's own, at the front of a row; behind them zeros."""
    sizes = _sizes(heads, tasks.device)
    widest = torch.arange(int(sizes.max()), device=tasks.device)
    columns = (sizes.cumsum(0) - sizes)[tasks].unsqueeze(1) + widest
    beyond = widest >= sizes[tasks].unsqueeze(1)
    return logits.gather(1, columns.clamp(max=logits.size(1) - 1)).masked_fill(beyond, 0)


def mixed_loss(heads: nn.ModuleList, features: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
    """The mean over all samples of each one's cross-entropy on its own head."""
    return F.cross_entropy(own_head_logits(heads, features, tasks), places(heads, tasks, labels))


def _sizes(heads: nn.ModuleList, device: torch.device) -> Tensor:
    return torch.tensor([cast(nn.Linear, head).out_features for head in heads], device=device)
