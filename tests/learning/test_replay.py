"""Replay buffers: the same number of each class, or a uniform sample of everything within a budget."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from softmask.learning import Batches, ClassBalancedBuffer, ReservoirBuffer, Scenario, Task
from softmask.learning.replay import Samples, mixed_loss, own_head_logits, own_logits, places

SCENARIO = Scenario((1, 1, 1), (2, 2, 2))


def numbered(index: int, count: int, first: int) -> Task:
    """Every image tells which sample of the stream it is."""
    images = torch.arange(first, first + count, dtype=torch.float32).view(-1, 1, 1, 1)
    batches = Batches(images, torch.arange(count) % 2, 4)
    return Task((index,), f"task {index}", 2, batches, batches)


def filled(budget: int, sizes: tuple[int, ...] = (10, 10, 10)) -> ReservoirBuffer:
    buffer, first = ReservoirBuffer(SCENARIO, budget), 0
    for index, size in enumerate(sizes):
        buffer.add(numbered(index, size, first))
        first += size
    return buffer


def test_class_balanced_keeps_the_same_number_of_each_class() -> None:
    buffer = ClassBalancedBuffer(SCENARIO, per_class=3)
    for index in range(2):
        buffer.add(numbered(index, 10, 10 * index))
    assert len(buffer) == 12
    assert buffer.labels[:12].bincount().tolist() == [6, 6]
    assert buffer.tasks[:12].bincount().tolist() == [6, 6]


def test_a_reservoir_never_exceeds_its_budget_and_keeps_all_that_fits() -> None:
    torch.manual_seed(0)
    assert len(filled(7)) == 7
    whole = filled(50)
    assert len(whole) == 30
    assert sorted(whole.images[:30].flatten().tolist()) == list(range(30))


def test_labels_and_tasks_belong_to_the_images() -> None:
    torch.manual_seed(0)
    buffer = filled(12)
    samples = buffer.images.flatten().long()
    assert torch.equal(buffer.tasks, samples // 10)
    assert torch.equal(buffer.labels, samples % 10 % 2)


def test_a_reservoir_is_a_uniform_sample_of_all_tasks() -> None:
    torch.manual_seed(0)
    counts = torch.zeros(30)
    for _ in range(2000):
        counts[filled(6).images.flatten().long()] += 1
    expected = 2000 * 6 / 30
    # Chi-squared over 29 degrees of freedom; sampling without replacement makes it smaller. 58 is the 0.1 % point.
    assert ((counts - expected).square() / expected).sum() < 58


def test_the_stream_goes_on_after_a_restart() -> None:
    torch.manual_seed(0)
    buffer = filled(6, (10,))
    restarted = ReservoirBuffer(SCENARIO, 6)
    restarted.load_state_dict(buffer.state_dict())
    for each in (buffer, restarted):
        torch.manual_seed(1)
        each.add(numbered(1, 10, 10))
    assert torch.equal(buffer.images, restarted.images)
    assert int(restarted.seen) == 20


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


def test_own_logits_stand_at_the_front_of_a_row() -> None:
    tasks, features = torch.tensor([0, 1, 1]), torch.randn(3, 2)
    heads = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 2)])
    own = own_logits(heads, own_head_logits(heads, features, tasks), tasks)
    torch.testing.assert_close(own[0], heads[0](features[0]))
    torch.testing.assert_close(own[1:, :2], heads[1](features[1:]))
    assert own[1:, 2].tolist() == [0, 0]
    own.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in heads.parameters())


def test_samples_stand_behind_a_batch() -> None:
    kept = Samples(torch.ones(1, 1), torch.tensor([2]), torch.tensor([0]))
    joined = kept.after(torch.zeros(2, 1), torch.tensor([0, 1]), task=3)
    assert [each.flatten().tolist() for each in joined] == [[0, 0, 1], [0, 1, 2], [3, 3, 0]]


def test_a_buffer_tells_where_it_put_the_samples() -> None:
    torch.manual_seed(0)
    for buffer in (ClassBalancedBuffer(SCENARIO, per_class=2), ReservoirBuffer(SCENARIO, 6, answers=True)):
        buffer.add(numbered(0, 10, 0))
        taken = buffer.add(numbered(1, 10, 10))
        assert sorted(taken.tolist()) == (buffer.tasks[: len(buffer)] == 1).nonzero().flatten().tolist()
