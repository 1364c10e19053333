"""Networks of a few given numbers in place of the AlexNet, for goldens that can be worked out by hand."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softmask.learning.method import Method, Step
from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task


class Chain(nn.Sequential):
    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(layer.weight.size(0) for layer in self if hasattr(layer, "weight"))


@dataclass(frozen=True)
class ToyScenario(Scenario):
    layers: tuple[nn.Module, ...] = ()
    given_heads: tuple[nn.Module, ...] = ()

    def backbone(self, scale: float = 1.0) -> Chain:
        return Chain(*copy.deepcopy(self.layers))

    def heads(self, width: int) -> nn.ModuleList:
        return nn.ModuleList(copy.deepcopy(self.given_heads))


def toy_scenario(layers: list[nn.Module], heads: list[nn.Module]) -> ToyScenario:
    """A network of these layers with these heads."""
    inputs = next(layer.weight.size(1) for layer in layers if hasattr(layer, "weight"))
    classes = tuple(head.out_features for head in heads)
    return ToyScenario((1, 1, inputs), classes, layers=tuple(layers), given_heads=tuple(heads))


def toy_task(x: Tensor, y: Tensor, index: int = 0, size: int = 2) -> Task:
    return Task((index,), f"toy {index}", int(y.max()) + 1, Batches(x, y, size), Batches(x, y, size))


def random_task(index: int = 0, count: int = 12, inputs: int = 3, classes: int = 2, size: int = 4) -> Task:
    generator = torch.Generator().manual_seed(index)
    return toy_task(
        torch.randn(count, inputs, generator=generator), torch.arange(count) % classes, index=index, size=size
    )


def random_scenario(tasks: int, inputs: int = 3, units: int = 4) -> ToyScenario:
    torch.manual_seed(1)
    return toy_scenario([nn.Linear(inputs, units), nn.ReLU()], [nn.Linear(units, 2) for _ in range(tasks)])


def step_of(task: Task, lr: float = 0.0) -> Step:
    x, y = next(iter(task.train))
    return Step(task, x, y, lr=lr)


@torch.no_grad()
def move(method: Method, weights: float, biases: float) -> None:
    """All weights of the backbone by one number, all biases by another."""
    for name, parameter in method.backbone.named_parameters():
        parameter.add_(weights if name.endswith("weight") else biases)
