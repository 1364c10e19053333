"""Replay buffers: the same number of each class, or a uniform sample of everything within a budget."""

import torch

from softmask.learning import Batches, ClassBalancedBuffer, ReservoirBuffer, Scenario, Task

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
