"""The same training by hand: what every integration must give, step for step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask import SoftMask

Batches = Sequence[tuple[Tensor, Tensor]]


def tasks(count: int = 3, batches: int = 6, width: int = 8) -> list[Batches]:
    generator = torch.Generator().manual_seed(0)
    return [
        [
            (torch.randn(16, width, generator=generator), torch.randint(3, (16,), generator=generator))
            for _ in range(batches)
        ]
        for _ in range(count)
    ]


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def new_head(task: int) -> nn.Linear:
    torch.manual_seed(100 + task)
    return nn.Linear(12, 3)


def new_backbone() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh())


def learned_by_hand(epochs: int = 2, make: Callable[[Iterable[nn.Parameter]], Optimizer] = adamw) -> SoftMask:
    backbone = new_backbone()
    mask, heads = SoftMask(backbone), list[nn.Module]()
    for task, batches in enumerate(tasks()):
        head = new_head(task)
        optimizer = make([*backbone.parameters(), *head.parameters()])
        with mask.attach(optimizer, head=head):
            for _ in range(epochs):
                for x, y in batches:
                    optimizer.zero_grad()
                    F.cross_entropy(head(backbone(x)), y).backward()
                    optimizer.step()
        mask.consolidate(batches, head, previous_heads=heads)
        heads.append(head)
    return mask


def assert_same(found: SoftMask, expected: SoftMask) -> None:
    for name, parameter in expected.parameters().items():
        torch.testing.assert_close(found.parameters()[name], parameter)
        torch.testing.assert_close(found.importance[name], expected.importance[name])
