"""Learning one more task, in memory: nothing here touches the model's folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from softmask.learning.device import exact, random_apart
from softmask.learning.evaluation import accuracy
from softmask.learning.fit import DivergedError, Fit, Fitter
from softmask.learning.method import Method
from softmask.learning.seeds import derive
from softmask.learning.task import Task, avoid_singleton_batch
from softmask.learning.training import Training
from softmask.models.data import Labelled, kind_of
from softmask.models.description import KnownTask, ModelConfig
from softmask.models.learner import make_method, room_of
from softmask.models.networks import Network

Watch = Callable[[Task, Fit], None]


@dataclass(frozen=True)
class Taught:
    """A learner that knows one task more, the task, and what is written down about it."""

    method: Method
    task: Task
    facts: KnownTask


def extended(config: ModelConfig, network: Network, state: Mapping[str, Any], classes: int) -> Method:
    """The learner with one more head."""
    method = make_method(config, network, (*config.classes, classes))
    method.load_state_dict({**method.state_dict(), **state})
    return method


def make_task(config: ModelConfig, name: str, train: Labelled, val: Labelled) -> Task:
    place, normalise = len(config.tasks), config.normalise
    return Task((place,), name, len(train.classes), train.batches(normalise), val.batches(normalise))


def teach(
    config: ModelConfig,
    network: Network,
    state: Mapping[str, Any],
    task: Task,
    classes: Sequence[str],
    training: Training,
    watch: Watch | None = None,
) -> Taught:
    """Train until the validation loss no longer falls, then measure what the task needs."""
    start, epochs = time.monotonic(), 0

    def count(fit: Fit) -> None:
        nonlocal epochs
        epochs += 1
        if watch is not None:
            watch(task, fit)

    method = extended(config, network, state, task.classes).to(task.train.device)
    with exact(task.train.device), random_apart():
        torch.manual_seed(derive(config.seed, "learn", task.name))
        batch = avoid_singleton_batch(method, training.batch, task.train.count)
        (task,) = method.stages([task], replace(training, batch=batch))
        method.begin_task(task)
        fitter = Fitter(method, task, training, watch=count)
        method.learn(task, fitter)
        fitter.close()
        conclude(method, task)
    return Taught(method, task, describe(method, task, classes, epochs, time.monotonic() - start))


def conclude(method: Method, task: Task) -> None:
    """What a method does once a task is learned: importance, masks."""
    method.eval()
    try:
        method.end_task(task)
    except FloatingPointError as error:
        raise DivergedError(f"training on {task.name} diverged: {error}") from error
    method.zero_grad(set_to_none=True)


def describe(method: Method, task: Task, classes: Sequence[str], epochs: int, seconds: float) -> KnownTask:
    return KnownTask(
        name=task.name,
        classes=tuple(classes),
        samples=task.train.count,
        accuracy=accuracy(method, task.val, task.id),
        epochs=epochs,
        seconds=round(seconds, 3),
        learned=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        room=room_of(method),
        inputs=kind_of(task.train.images),
    )
