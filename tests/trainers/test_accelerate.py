"""A mask on an optimizer that accelerate has prepared: the same as in a plain loop; a guard in its checkpoints."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from softmask import SoftMask, protect
from tests.trainers.loop import adamw, assert_same, learned_by_hand, new_backbone, new_head, tasks

accelerate = pytest.importorskip("accelerate")


def test_the_same_as_by_hand() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    backbone = accelerator.prepare(new_backbone())
    mask, heads = SoftMask(backbone), list[nn.Module]()
    for task, batches in enumerate(tasks()):
        head = accelerator.prepare(new_head(task))
        optimizer, loader = accelerator.prepare(
            adamw([*backbone.parameters(), *head.parameters()]), DataLoader(batches, batch_size=None)
        )
        with mask.attach(optimizer, head=head):
            for _ in range(2):
                for x, y in loader:
                    optimizer.zero_grad()
                    accelerator.backward(F.cross_entropy(head(backbone(x)), y))
                    optimizer.step()
        mask.consolidate(loader, head, previous_heads=heads)
        heads.append(head)
    assert_same(mask, learned_by_hand())


def second_task(folder: Path, stops_after: int | None = None, goes_on: bool = False) -> list[torch.Tensor]:
    """A guard that knows one task while the second is learned; the weights at the end."""
    accelerator = accelerate.Accelerator(cpu=True)
    first, second = tasks(2)
    backbone, head = accelerator.prepare(new_backbone(), new_head(1))
    guard = protect(backbone, ways=("answers", "subspace"))
    optimizer = accelerator.prepare(adamw([*backbone.parameters(), *head.parameters()]))
    accelerator.register_for_checkpointing(guard)
    if goes_on:
        accelerator.load_state(str(folder))
    else:
        guard.consolidate(first, new_head(0))
    with guard.attach(optimizer):
        for x, y in second[3:] if goes_on else second[:stops_after]:
            optimizer.zero_grad()
            features = backbone(x)
            accelerator.backward(F.cross_entropy(head(features), y) + guard(x, features))
            optimizer.step()
    if stops_after is not None:
        accelerator.save_state(str(folder))
    return [parameter.detach().clone() for parameter in (*backbone.parameters(), *head.parameters())]


def test_a_guard_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    whole = second_task(tmp_path)
    second_task(tmp_path / "state", stops_after=3)
    resumed = second_task(tmp_path / "state", goes_on=True)  # nothing but the checkpoint knows the first task
    assert all(torch.equal(a, b) for a, b in zip(whole, resumed, strict=True))
