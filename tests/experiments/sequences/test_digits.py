"""The built-in sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from softmask.experiments.sequences import load_sequence
from softmask.experiments.sequences.digits import NORMALISE, rotated_digits, upright_digits
from softmask.learning.seeds import Seeds
from softmask.learning.task import Batches, Task, TaskSequence


@pytest.fixture(scope="module")
def by_class() -> TaskSequence:
    return load_sequence("D-5", None, Seeds())


@pytest.fixture(scope="module")
def by_rotation() -> TaskSequence:
    return load_sequence("R-10", None, Seeds())


def sources(batches: Batches, degrees: int) -> set[int]:
    """Which of the 1797 images these are."""
    known = {image.tobytes(): row for row, image in enumerate(rotated_digits(degrees).images)}
    assert len(known) == 1797, "two images look alike: they cannot be told apart"
    return {known[image.numpy().tobytes()] for image in batches.images}


def degrees_of(name: str) -> int:
    return int(name.removeprefix("digits turned by ").split()[0])


def test_seed_1_means_these_very_samples(by_class: TaskSequence) -> None:
    assert [task.name for task in by_class.tasks] == [
        "digit 6,digit 7 #d449d20aad51",
        "digit 4,digit 5 #9a34eda95a6f",
        "digit 1,digit 3 #2bc0906c2a55",
        "digit 9,digit 0 #b16193965369",
        "digit 8,digit 2 #b3c4d11671ad",
    ]


def test_another_order_changes_tasks_but_no_counts(by_class: TaskSequence) -> None:
    other = load_sequence("D-5", None, Seeds(order=2))
    assert {task.name for task in other.tasks} != {task.name for task in by_class.tasks}
    for part in ("train", "val"):
        counts = [sum(getattr(task, part).count for task in sequence.tasks) for sequence in (by_class, other)]
        assert counts[0] == counts[1]
    assert [test.count for test in other.tests] == [test.count for test in by_class.tests]


def test_parts_of_d5_are_disjoint_and_complete(by_class: TaskSequence) -> None:
    parts = [part for task, test in _pairs(by_class) for part in (task.train, task.val, test)]
    found = [sources(part, 0) for part in parts]
    assert sum(map(len, found)) == len(set().union(*found)) == 1797


def test_shares_are_about_64_16_and_20_percent(by_class: TaskSequence) -> None:
    for task, test in _pairs(by_class):
        counts = np.array([task.train.count, task.val.count, test.count])
        assert np.abs(counts / counts.sum() - (0.64, 0.16, 0.2)).max() < 0.02


def test_a_rotation_trains_on_forty_images_of_a_digit_of_its_own_choice(by_rotation: TaskSequence) -> None:
    for task in by_rotation.tasks:
        assert Counter(task.train.labels.tolist()) == dict.fromkeys(range(10), 40)
    drawn = [frozenset(sources(task.train, degrees_of(task.name))) for task in by_rotation.tasks]
    assert len(set(drawn)) == len(drawn)


def test_digits_are_validated_and_tested_alike(by_class: TaskSequence, by_rotation: TaskSequence) -> None:
    for sequence in (by_class, by_rotation):
        for task, test in _pairs(sequence):
            assert Counter(task.val.labels.tolist()) == dict.fromkeys(range(task.classes), 29)
            assert Counter(test.labels.tolist()) == dict.fromkeys(range(task.classes), 36)


def test_no_image_tested_anywhere_is_trained_on_in_any_rotation(by_rotation: TaskSequence) -> None:
    trained, held, tested = set(), set(), set()
    for task, test in _pairs(by_rotation):
        degrees = degrees_of(task.name)
        trained |= sources(task.train, degrees)
        held |= sources(task.val, degrees)
        tested |= sources(test, degrees)
    assert (len(held), len(tested)) == (290, 360)
    assert 1000 < len(trained) <= 1147, "ten draws of a third reach nearly all"
    assert len(trained | held | tested) == len(trained) + len(held) + len(tested)


def test_rotations_are_those_promised_and_their_order_is_drawn(by_rotation: TaskSequence) -> None:
    angles = [degrees_of(task.name) for task in by_rotation.tasks]
    assert sorted(angles) == list(range(0, 90, 9))
    other = [degrees_of(task.name) for task in load_sequence("R-10", None, Seeds(order=2)).tasks]
    assert other != angles != sorted(angles)


def test_turning_is_counter_clockwise_and_keeps_the_labels() -> None:
    upright, turned = upright_digits(), rotated_digits(90)
    np.testing.assert_array_equal(np.rot90(upright.images[5, 0]), turned.images[5, 0])
    np.testing.assert_array_equal(turned.labels, upright.labels)
    np.testing.assert_array_equal(upright.images, rotated_digits(0).images)


def test_normalisation_fits_the_pixels() -> None:
    pixels = upright_digits().images / 255
    assert NORMALISE.mean[0] == pytest.approx(pixels.mean(), abs=0.005)
    assert NORMALISE.std[0] == pytest.approx(pixels.std(), abs=0.005)
    assert pixels.max() == 1


def test_shared_images_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        rotated_digits(9).images[0] = 0


def test_made_once_in_a_process() -> None:
    assert rotated_digits(9) is rotated_digits(9)
    assert upright_digits() is upright_digits()


def _pairs(sequence: TaskSequence) -> Iterator[tuple[Task, Batches]]:
    return zip(sequence.tasks, sequence.tests, strict=True)
