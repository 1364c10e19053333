"""The baseline of our measurements: SPG straight from the equations, with standard layers, as written first."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DROP1, DROP2 = 0.313456, 0.409306  # the authors' pair for C-10


def standard_alexnet(drop1: float = DROP1, drop2: float = DROP2) -> nn.Sequential:
    """The same network from standard layers, for 3 x 32 x 32 images."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 4), nn.ReLU(), nn.Dropout(drop1), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.Dropout(drop1), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, 256, 2), nn.ReLU(), nn.Dropout(drop2), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(drop2)),
        *(nn.Linear(2048, 2048), nn.ReLU(), nn.Dropout(drop2)),
    )


class TextbookSPG:
    """One network, one head a task, importance by one full pass for every head."""

    def __init__(self, tasks: int, classes: int) -> None:
        self.backbone = standard_alexnet()
        self.heads = nn.ModuleList(nn.Linear(2048, classes) for _ in range(tasks))
        self.importance = [torch.zeros_like(p) for p in self.backbone.parameters()]
        parameters = [*self.backbone.parameters(), *self.heads.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.01)

    def plain_step(self, x: Tensor, y: Tensor, task: int) -> None:
        """A plain PyTorch loop: no mask."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.heads[task](self.backbone(x)), y).backward()
        self.optimizer.step()

    def step(self, x: Tensor, y: Tensor, task: int) -> None:
        """Equations 6 and 7."""
        self.optimizer.zero_grad()
        F.cross_entropy(self.heads[task](self.backbone(x)), y).backward()
        for parameter, importance in zip(self.backbone.parameters(), self.importance, strict=True):
            parameter.grad *= 1 - importance
        mean = torch.cat([importance.flatten() for importance in self.importance]).mean()
        nn.utils.clip_grad_norm_(self.heads.parameters(), 10000)
        for parameter in self.heads[task].parameters():
            parameter.grad *= 1 - mean
        self.optimizer.step()

    def importance_through(self, batches: Iterable[tuple[Tensor, Tensor]], old_heads: int) -> list[Tensor]:
        """Equations 1 to 4 through old heads: for each of them a forward and a backward pass over all batches."""
        largest = [torch.zeros_like(p) for p in self.backbone.parameters()]
        for head in self.heads[:old_heads]:
            self.optimizer.zero_grad()
            for x, _ in batches:
                head(self.backbone(x)).sum().backward()
            for kept, parameter in zip(largest, self.backbone.parameters(), strict=True):
                gradient = parameter.grad
                torch.maximum(kept, torch.tanh((gradient - gradient.mean()) / gradient.std()).abs(), out=kept)
        return largest
