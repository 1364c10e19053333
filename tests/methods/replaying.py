"""A network of one weight, one old head and a new one, with samples that stand in the buffer by hand."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from softmask.learning.method import Method, Step
from softmask.learning.replaying import ReplayMethod
from tests.learning.toys import toy_scenario, toy_task

Replaying = TypeVar("Replaying", bound=ReplayMethod)


def linear(*rows: list[float]) -> nn.Linear:
    """Without an effect of its bias."""
    layer = nn.Linear(len(rows[0]), len(rows))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
        layer.bias.zero_()
    return layer


def one_weight(kind: type[Replaying], new_head: nn.Linear | None = None, **settings: float) -> tuple[Replaying, Step]:
    """The weight is 1; the old head answers (feature, 0), the new one has no opinion; one new image, 2, of label 1."""
    backbone = nn.Linear(1, 1, bias=False)
    nn.init.ones_(backbone.weight)
    heads: list[nn.Module] = [linear([1.0], [0.0]), new_head or linear([0.0], [0.0]), linear([0.0], [0.0])]
    method = kind(toy_scenario([nn.Flatten(), backbone], heads), kind.Settings(**settings))
    task = toy_task(torch.tensor([[[[2.0]]]]), torch.tensor([1]), index=1)
    return method, Step(task, *next(iter(task.train)), lr=1.0)


def remember(method: ReplayMethod, *samples: tuple[float, int], task: int = 0) -> None:
    """Images of one pixel with their labels."""
    for place, (pixel, label) in enumerate(samples):
        method.memory.images[place], method.memory.labels[place], method.memory.tasks[place] = pixel, label, task
    method.memory.count.fill_(len(samples))


def trainable_heads(method: Method) -> list[bool]:
    return [all(parameter.requires_grad for parameter in head.parameters()) for head in method.heads]
