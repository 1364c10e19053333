"""Samples of past tasks, the same number for each class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task


class Memory(nn.Module):
    """Images, labels and tasks in buffers of full size, of which the first `count` are filled."""

    images: Tensor
    labels: Tensor
    tasks: Tensor
    count: Tensor

    def __init__(self, scenario: Scenario, per_class: int) -> None:
        super().__init__()
        capacity = per_class * sum(scenario.classes)
        self.per_class = per_class
        self.register_buffer("images", torch.zeros(capacity, *scenario.input_shape))
        self.register_buffer("labels", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("tasks", torch.zeros(capacity, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        return int(self.count)

    def add(self, task: Task) -> None:
        """Training samples of the task, normalised: of each class so many at random, or all where there are fewer."""
        train = task.train
        for label in range(task.classes):
            members = (train.labels == label).nonzero().flatten()
            chosen = members[torch.randperm(len(members))[: self.per_class]]
            place = slice(len(self), len(self) + len(chosen))
            self.images[place] = Batches(train.images[chosen], train.labels[chosen], normalise=train.normalise).x
            self.labels[place], self.tasks[place] = label, task.id
            self.count += len(chosen)

    def draw(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and tasks of `size` samples without replacement, or of all where there are fewer."""
        chosen = torch.randperm(len(self), generator=generator)[:size].to(self.images.device)
        return self.images[chosen], self.labels[chosen], self.tasks[chosen]
