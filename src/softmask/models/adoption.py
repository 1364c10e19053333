"""Taking over a model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from softmask.core import freeze_running_statistics
from softmask.learning.device import exact, random_apart
from softmask.learning.seeds import derive
from softmask.learning.task import Task
from softmask.models.description import ModelConfig
from softmask.models.learner import LearnerError, make_method
from softmask.models.networks import Network, NetworkError
from softmask.models.teaching import Taught, conclude, describe

# SI measures while it trains, NCL not at all: neither can protect what was learned before it came.
FROM_DATA = ("spg", "spg-no-chi", "spg-no-smh", "spg-hard", "spg-fi", "ewc", "ewc-gi")


def take_over(
    config: ModelConfig, network: Network, backbone: nn.Module, head: nn.Module, task: Task, classes: Sequence[str]
) -> Taught:
    """A learner with these weights that protects what the task's samples show to matter."""
    if config.method not in FROM_DATA:
        raise LearnerError(
            f"{config.method} cannot measure what a trained model needs; one of {', '.join(FROM_DATA)} can"
        )
    method = make_method(config, network, (task.classes,))
    try:
        method.backbone.load_state_dict(backbone.state_dict())
    except RuntimeError as error:
        told = " ".join(str(error).split())[:300]
        raise NetworkError(f"network {config.network} does not make the backbone that was given: {told}") from None
    _take_head(method.heads[0], head)
    freeze_running_statistics(method.to(task.train.device).backbone)
    with exact(task.train.device), random_apart():
        torch.manual_seed(derive(config.seed, "adopt", task.name))
        conclude(method, task)
    return Taught(method, task, describe(method, task, classes, epochs=0, seconds=0.0))


@torch.no_grad()
def _take_head(own: nn.Module, head: nn.Module) -> None:
    assert isinstance(own, nn.Linear)
    if not isinstance(head, nn.Linear) or head.weight.shape != own.weight.shape:
        got = tuple(head.weight.shape) if isinstance(head, nn.Linear) else type(head).__name__
        raise NetworkError(f"the head must be an nn.Linear with a weight of {tuple(own.weight.shape)}, not {got}")
    own.weight.copy_(head.weight)
    own.bias.zero_()
    if head.bias is not None:
        own.bias.copy_(head.bias)
