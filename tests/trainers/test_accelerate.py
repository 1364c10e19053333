"""A mask on an optimizer that accelerate has prepared: the same as in a plain loop."""

import pytest
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from softmask import SoftMask
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
