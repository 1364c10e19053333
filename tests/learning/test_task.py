"""Batches, tasks and sequences."""

import pytest
import torch

from softmask.errors import ConfigError
from softmask.learning.task import Batches, Normalisation, Task, TaskSequence, crop_and_flip, sample_digest


def batches(count: int = 10, size: int = 4, **options) -> Batches:
    images = torch.arange(count * 12, dtype=torch.uint8).view(count, 3, 2, 2)
    return Batches(images, torch.arange(count), size, **options)


def test_covers_everything_once_in_order() -> None:
    parts = list(batches())
    assert [len(y) for _, y in parts] == [4, 4, 2]
    assert torch.cat([y for _, y in parts]).tolist() == list(range(10))
    assert len(batches()) == 3
    assert batches().count == 10


def test_shuffles_anew_each_pass_from_its_own_generator() -> None:
    shuffled = batches(shuffle=True, seed=1)
    before = torch.get_rng_state()
    first, second = (torch.cat([y for _, y in shuffled]).tolist() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert first == torch.cat([y for _, y in batches(shuffle=True, seed=1)]).tolist()
    assert first != torch.cat([y for _, y in batches(shuffle=True, seed=2)]).tolist()


def test_images_keep_their_labels_when_shuffled() -> None:
    for x, y in batches(shuffle=True):
        assert torch.equal(x[:, 0, 0, 0].long(), y * 12)


def test_normalises_channel_by_channel() -> None:
    normalise = Normalisation((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    x, _ = next(iter(batches(normalise=normalise)))
    stored = batches().images[:4].double() / 255
    for channel in range(3):
        expected = (stored[:, channel] - normalise.mean[channel]) / normalise.std[channel]
        torch.testing.assert_close(x[:, channel].double(), expected, rtol=1e-6, atol=1e-6)
    assert x.dtype == torch.float32


def test_rebatching_keeps_the_images_without_a_copy() -> None:
    again = batches().batched(3, shuffle=True, seed=5)
    assert len(again) == 4
    original = batches()
    assert original.batched(2).images.data_ptr() == original.images.data_ptr()


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="2 images but 3 labels"):
        Batches(torch.zeros(2, 1, 1, 1), torch.zeros(3))
    with pytest.raises(ValueError, match="at least one"):
        batches(size=0)


def sequence(count: int = 3) -> TaskSequence:
    tasks = tuple(Task((i,), f"task {i}", 2, batches(), batches()) for i in range(count))
    return TaskSequence("X", tasks, (batches(),) * count, (3, 2, 2), similar=False)


def test_a_task_has_no_test_set() -> None:
    """By construction: what a method is given holds training and validation data only."""
    assert not any("test" in name for name in vars(sequence().tasks[0]))
    assert not hasattr(sequence().tasks[0], "test")


def test_first_cuts_tasks_and_tests() -> None:
    cut = sequence().first(2)
    assert len(cut.tasks) == len(cut.tests) == 2
    assert cut.classes == (2, 2)
    for wrong in (0, 4):
        with pytest.raises(ValueError, match="3 tasks"):
            sequence().first(wrong)


def test_a_task_needs_a_test_set() -> None:
    with pytest.raises(ValueError, match="3 tasks but 2 test sets"):
        TaskSequence("X", sequence().tasks, sequence().tests[:2], (3, 2, 2), similar=False)


def test_digest_tells_samples_and_their_order() -> None:
    assert sample_digest([1, 2], [3]) == sample_digest([1, 2], [3])
    assert len({sample_digest([1, 2], [3]), sample_digest([2, 1], [3]), sample_digest([1], [2, 3])}) == 3


def test_crop_and_flip_against_one_image_at_a_time() -> None:
    images = torch.randn(64, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    changed = crop_and_flip(images, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (3, 3, 2, 2))
    found = set()
    for image, wide in zip(changed, padded, strict=True):
        candidates = {
            (top, left, flip): wide[:, top : top + 16, left : left + 24].flip(2 if flip else ())
            for top in range(5)
            for left in range(7)
            for flip in (False, True)
        }
        (which,) = [key for key, each in candidates.items() if torch.equal(each, image)]
        found.add(which)
    assert {top for top, _, _ in found} == set(range(5))
    assert {left for _, left, _ in found} == set(range(7))
    assert {flip for _, _, flip in found} == {False, True}


def test_crop_and_flip_needs_images() -> None:
    with pytest.raises(ConfigError, match="crop-flip"):
        crop_and_flip(torch.zeros(2, 5), torch.Generator())
