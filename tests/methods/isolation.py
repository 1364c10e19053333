"""Small tasks and short trainings for methods that give every task its own part of the network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmask.learning import evaluating
from softmask.learning.fit import Fit, Fitter
from softmask.learning.method import Method
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training

SHAPE = (3, 32, 32)
TRAINING = Training(lr=0.1, epochs=2, batch=16, schedule="cosine")


def small_scenario(tasks: int = 3, classes: int = 3, width: float = 1 / 16, drop: float = 0.2) -> Scenario:
    return Scenario(SHAPE, (classes,) * tasks, NetworkConfig(width=width, drop1=drop, drop2=drop))


def random_task(index: int, classes: int = 3) -> Task:
    """64 images without any meaning to learn and 32 to validate with."""
    draws = torch.Generator().manual_seed(100 + index)
    train, val = (
        Batches(torch.randn(count, *SHAPE, generator=draws), torch.randint(classes, (count,), generator=draws), 16)
        for count in (64, 32)
    )
    return Task((index,), f"random {index}", classes, train, val)


def separable_task(index: int = 0, classes: int = 5, train: int = 384, val: int = 128, size: int = 64) -> Task:
    """Every class is a smooth pattern of its own under noise."""
    draws = torch.Generator().manual_seed(index)
    patterns = torch.nn.functional.interpolate(torch.randn(classes, 3, 4, 4, generator=draws), size=32, mode="bilinear")

    def batches(count: int) -> Batches:
        labels = torch.arange(count) % classes
        return Batches(patterns[labels] + 0.5 * torch.randn(count, *SHAPE, generator=draws), labels, size)

    return Task((index,), f"separable {index}", classes, batches(train), batches(val))


def made(kind: type[Method], scenario: Scenario | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    return kind(scenario or small_scenario(), kind.Settings(**settings))


def learn(method: Method, task: Task, training: Training = TRAINING) -> list[float]:
    """Learns one task as the protocol does, up to but without its end; returns the validation losses on the way."""
    torch.manual_seed(task.id)
    losses: list[float] = []

    def note(fit: Fit) -> None:
        if fit.learner is method:
            losses.append(fit.last["val_loss"])

    method.begin_task(task)
    method.learn(task, Fitter(method, task, training, watch=note))
    method.eval()
    return losses


def learn_all(method: Method, tasks: list[Task], training: Training = TRAINING) -> list[dict[str, Any]]:
    """Learns tasks with their ends; returns the facts."""
    facts = []
    for task in tasks:
        learn(method, task, training)
        facts.append(method.end_task(task) or {})
        method.zero_grad(set_to_none=True)
    return facts


def logits(method: Method, task: Task) -> Tensor:
    with evaluating(method), torch.no_grad():
        return method(task.val.x, task.id)


def forgets(method: Method, tasks: list[Task]) -> bool:
    """Whether the answers for the first of the tasks change while the others are learned."""
    learn_all(method, tasks[:1])
    before = logits(method, tasks[0])
    learn_all(method, tasks[1:])
    return not torch.equal(logits(method, tasks[0]), before)
