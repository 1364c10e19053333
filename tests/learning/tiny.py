"""The smallest learner and task: one linear layer on a handful of points."""

import torch
from torch import Tensor, nn

from softmask.learning.fit import Fit
from softmask.learning.method import Method
from softmask.learning.scenario import Scenario
from softmask.learning.task import Batches, Task


class TinyMethod(Method):
    title = "tiny"

    def build(self) -> None:
        self.backbone = nn.Identity()
        self.heads = nn.ModuleList(nn.Linear(4, classes) for classes in self.scenario.classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def features(self, x: Tensor, task: int) -> Tensor:
        return x.flatten(1)

    def after_step(self, step) -> None:
        self.steps += 1


def tiny_task(index: int = 0, count: int = 10, size: int = 4, shuffle: bool = False) -> Task:
    generator = torch.Generator().manual_seed(index)
    x = torch.randn(count, 1, 2, 2, generator=generator)
    y = (x.sum((1, 2, 3)) > 0).long()
    return Task((index,), f"tiny {index}", 2, Batches(x, y, size, shuffle=shuffle), Batches(x, y, size))


def tiny_method(tasks: int = 1) -> TinyMethod:
    torch.manual_seed(0)
    return TinyMethod(Scenario((1, 2, 2), (2,) * tasks))


def rates(fit: Fit) -> list[float]:
    """Runs it, and tells the learning rate of each epoch."""
    seen: list[float] = []
    fit.after_epoch = lambda fit: seen.append(fit.last["lr"])
    fit.run()
    return seen
