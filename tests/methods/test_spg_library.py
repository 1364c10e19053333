"""The benchmark's SPG equals the library in a plain loop: `attach` and `consolidate` around torch's own SGD."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from softmask import SoftMask
from softmask.learning.seeds import derive
from softmask.learning.task import Task
from tests.methods.comparing import built, learned

TASKS, SEED, LR = 3, 1, 0.25  # the last two are defaults of the benchmark
ONE_EPOCH = {"epochs": 1, "batch": 32}


class PlainLoop:
    """A user's loop over the tasks, with the benchmark's initial weights, seeds and batches."""

    def __init__(self) -> None:
        method, tasks = built("spg", TASKS, **ONE_EPOCH)
        self.backbone, self.heads = copy.deepcopy(method.backbone), copy.deepcopy(method.heads)
        self.tasks = [t.batched(32, shuffle=True, seed=derive(SEED, t.name)) for t in tasks]
        self.mask = SoftMask(self.backbone)

    def train(self, task: Task) -> None:
        head = self.heads[task.id]
        optimizer = torch.optim.SGD([*self.backbone.parameters(), *head.parameters()], lr=LR)
        torch.manual_seed(derive(SEED, "learn", task.name))
        self.backbone.train()
        with self.mask.attach(optimizer, head=head):
            for x, y in task.train:
                optimizer.zero_grad()
                F.cross_entropy(head(self.backbone(x)), y).backward()
                optimizer.step()

    def consolidate(self, task: Task) -> None:
        torch.manual_seed(derive(SEED, task.name, "SPG"))
        self.backbone.train()
        self.mask.consolidate(task.train, self.heads[task.id], previous_heads=list(self.heads)[: task.id])


def largest_difference(ours: nn.Module, theirs: nn.Module) -> float:
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    return max((one - other).abs().max().item() for one, other in pairs)


def test_training_over_three_tasks_agrees_to_1e_6() -> None:
    """Not to the bit: torch's SGD rounds after scaling a gradient, MaskedSGD multiplies and adds at once."""
    loop, method = PlainLoop(), learned("spg", TASKS, **ONE_EPOCH)
    for task in loop.tasks:
        loop.train(task)
        loop.consolidate(task)
    assert largest_difference(loop.backbone, method.backbone) < 1e-6
    assert largest_difference(loop.heads, method.heads) < 1e-6
    assert largest_difference(learned("ncl", TASKS, **ONE_EPOCH).backbone, method.backbone) > 1e-3, "masks matter"
    for name, importance in loop.mask.importance.items():
        torch.testing.assert_close(importance, method.mask.importance[name], rtol=0, atol=1e-4)


def test_importance_of_the_same_weights_agrees_to_the_bit() -> None:
    loop, (method, _) = PlainLoop(), built("spg", TASKS, **ONE_EPOCH)
    for task in loop.tasks:
        loop.train(task)
        method.backbone.load_state_dict(loop.backbone.state_dict())
        method.heads.load_state_dict(loop.heads.state_dict())
        order = task.train.generator.get_state()
        loop.consolidate(task)
        task.train.generator.set_state(order)
        method.end_task(task)
        for name, importance in loop.mask.importance.items():
            assert torch.equal(importance, method.mask.importance[name])
    assert 0 < loop.mask.mean() < 1
