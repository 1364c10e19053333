"""Short runs on D-5, to be compared to the bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import build, load
from softmask.learning.method import Method
from softmask.learning.protocol import learn_sequence
from softmask.learning.task import Task
from softmask.testing import InMemoryJournal

# One pair of dropout rates for all: a method's own would tell it from another one in every step.
SMALL = {"network.width": 1 / 16, "network.drop1": 0.2, "network.drop2": 0.2, "epochs": 2, "joint_epochs": 2}


def built(method: str, tasks: int = 2, **changes: Any) -> tuple[Method, tuple[Task, ...]]:
    """The method before its first task, and the tasks."""
    config = make_config(method, "D-5", preset="short", tasks=tasks, changes={**SMALL, **changes})
    sequence = load(config, None)
    return build(config, sequence), sequence.tasks


def learned(method: str, tasks: int = 2, **changes: Any) -> Method:
    """The method after so many tasks of two epochs each."""
    config = make_config(method, "D-5", preset="short", tasks=tasks, changes={**SMALL, **changes})
    sequence = load(config, None)
    return learn_sequence(build(config, sequence), sequence.tasks, config.training, InMemoryJournal(), tests=None)


def network(method: Method) -> dict[str, Tensor]:
    return {n: p.detach() for n, p in method.named_parameters() if n.split(".")[0] in ("backbone", "heads")}


def same_network(one: Method, other: Method) -> bool:
    """To the bit."""
    ours, theirs = network(one), network(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
