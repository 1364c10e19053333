"""Mixed batches against one sample at a time, with heads of different sizes."""

import torch
import torch.nn.functional as F
from torch import nn

from softmask.learning.replay import mixed_loss, own_head_logits, places

HEADS = nn.ModuleList(nn.Linear(4, classes) for classes in (2, 3, 1, 5))
TASKS = torch.tensor([0, 3, 1, 3, 2])
LABELS = torch.tensor([1, 4, 2, 0, 0])


def test_every_sample_is_judged_by_its_own_head() -> None:
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    logits = own_head_logits(HEADS, features, TASKS)
    assert logits.shape == (5, 11)
    for row, task, label, place, feature in zip(
        logits, TASKS, LABELS, places(HEADS, TASKS, LABELS), features, strict=True
    ):
        own = HEADS[int(task)](feature)
        torch.testing.assert_close(row[row > -torch.inf], own)
        torch.testing.assert_close(row[place], own[label])
    alone = [
        F.cross_entropy(HEADS[int(t)](f).unsqueeze(0), y.unsqueeze(0))
        for t, y, f in zip(TASKS, LABELS, features, strict=True)
    ]
    torch.testing.assert_close(mixed_loss(HEADS, features, TASKS, LABELS), torch.stack(alone).mean())


def test_heads_without_samples_get_no_gradient_and_nothing_is_nan() -> None:
    features = torch.randn(2, 4, requires_grad=True)
    HEADS.zero_grad()
    mixed_loss(HEADS, features, torch.tensor([0, 0]), torch.tensor([0, 1])).backward()
    assert features.grad.isfinite().all()
    assert HEADS[0].weight.grad.any()
    assert all((HEADS[index].weight.grad == 0).all() for index in (1, 2, 3))
