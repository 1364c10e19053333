"""Random splits: what a seed decides, and what it leaves alone."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softmask.errors import DataError
from softmask.images.labelled import LabelledImages
from softmask.images.splitting import apportion, divide, draw, hold_out, shuffled, split_by_class, split_by_view
from softmask.learning.seeds import Seeds, derive
from softmask.learning.task import Batches, Normalisation, TaskSequence

CLASSES, TRAIN, VALIDATION, TEST = 6, 10, 3, 4
NORMALISE = Normalisation((0.5,), (0.5,))
SEEDS = Seeds()


def samples(per_class: int, first: int = 0) -> LabelledImages:
    """Each image shows its own number and its class, so that it can be recognised in a task."""
    labels = [row % CLASSES for row in range(CLASSES * per_class)]
    images = np.zeros((len(labels), 1, 2, 2), np.uint8)
    images[:, 0, 0, 0] = np.arange(first, first + len(labels))
    images[:, 0, 1, 1] = labels
    return LabelledImages(images, np.array(labels), np.arange(len(labels)))


def split(seeds: Seeds = SEEDS, tasks: int = 3, stratified: bool = True, **other: LabelledImages) -> TaskSequence:
    return split_by_class(
        other.get("train", samples(TRAIN + VALIDATION)),
        samples(TEST, first=100),
        name="X",
        tasks=tasks,
        validation=VALIDATION,
        seeds=seeds,
        normalise=NORMALISE,
        class_names="abcdef",
        stratified=stratified,
    )


def numbers(batches: Batches) -> list[int]:
    return batches.images[:, 0, 0, 0].tolist()


def classes(batches: Batches) -> list[int]:
    return batches.images[:, 0, 1, 1].tolist()


def test_every_image_is_in_exactly_one_part() -> None:
    sequence = split()
    train, val = ([n for task in sequence.tasks for n in numbers(getattr(task, part))] for part in ("train", "val"))
    assert sorted(train + val) == list(range(CLASSES * (TRAIN + VALIDATION)))
    assert sorted(n for test in sequence.tests for n in numbers(test)) == list(range(100, 100 + CLASSES * TEST))


def test_each_task_has_its_own_classes_numbered_by_their_place_in_the_group() -> None:
    sequence = split()
    seen: list[int] = []
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        group = ["abcdef".index(letter) for letter in task.name.split(" #")[0].split(",")]
        seen += group
        for batches in (task.train, task.val, test):
            assert [group[label] for label in batches.labels.tolist()] == classes(batches)
    assert sorted(seen) == list(range(CLASSES))


def test_counts_of_each_class_are_exact_when_stratified() -> None:
    for task, test in zip(split().tasks, split().tests, strict=True):
        assert Counter(task.train.labels.tolist()) == {0: TRAIN, 1: TRAIN}
        assert Counter(task.val.labels.tolist()) == {0: VALIDATION, 1: VALIDATION}
        assert Counter(test.labels.tolist()) == {0: TEST, 1: TEST}


def test_unstratified_keeps_the_sum_but_not_the_balance() -> None:
    drawn = [split(Seeds(split=seed), stratified=False).tasks[0].val.labels.tolist() for seed in range(5)]
    assert {len(labels) for labels in drawn} == {2 * VALIDATION}
    assert any(Counter(labels)[0] != VALIDATION for labels in drawn)


def test_the_same_seeds_give_the_same_everything() -> None:
    one, other = split(), split()
    assert [task.name for task in one.tasks] == [task.name for task in other.tasks]
    for a, b in zip(one.tasks, other.tasks, strict=True):
        assert torch.equal(a.train.images, b.train.images)


def test_training_order_is_random_not_by_class() -> None:
    labels = split().tasks[0].train.labels.tolist()
    assert labels != sorted(labels)
    assert numbers(split().tasks[0].train) != numbers(split(Seeds(split=2)).tasks[0].train)


def test_the_order_seed_moves_classes_and_no_image_between_parts() -> None:
    held = [sorted(n for task in split(Seeds(order=seed)).tasks for n in numbers(task.val)) for seed in (1, 2)]
    names = [[task.name for task in split(Seeds(order=seed)).tasks] for seed in (1, 2)]
    assert held[0] == held[1]
    assert names[0] != names[1]


def test_the_split_seed_moves_images_and_no_class() -> None:
    one, other = split(), split(Seeds(split=2))
    assert [task.name.split(" #")[0] for task in one.tasks] == [task.name.split(" #")[0] for task in other.tasks]
    assert numbers(one.tasks[0].val) != numbers(other.tasks[0].val)
    assert one.tasks[0].name != other.tasks[0].name


def test_seeds_of_weights_and_batches_change_no_data() -> None:
    names = [[task.name for task in split(seeds).tasks] for seeds in (Seeds(), Seeds(init=9, batches=9))]
    assert names[0] == names[1]


def test_the_order_of_storage_changes_nothing() -> None:
    stored = samples(TRAIN + VALIDATION)
    other = stored.take(shuffled(range(len(stored.labels)), "storage"))
    assert list(other.ids) != list(stored.ids)
    one, two = split(train=stored), split(train=other)
    assert [task.name for task in one.tasks] == [task.name for task in two.tasks]
    assert [numbers(task.train) for task in one.tasks] == [numbers(task.train) for task in two.tasks]


def test_an_image_held_out_in_one_cut_is_held_out_in_another() -> None:
    in_three, in_two = ({n for task in split(tasks=tasks).tasks for n in numbers(task.val)} for tasks in (3, 2))
    assert in_three == in_two


def test_classes_must_divide_into_tasks() -> None:
    with pytest.raises(ValueError, match="6 classes cannot be cut into 4"):
        split(tasks=4)


def test_something_must_be_left_for_training() -> None:
    with pytest.raises(DataError, match="cannot hold 3 of 3 images out for validation"):
        split(train=samples(VALIDATION))


def test_holding_out_keeps_the_order_and_draws_differently_for_each_purpose() -> None:
    kept, held = hold_out(range(100), 20, "test", 1)
    assert sorted(kept + held) == list(range(100))
    assert kept == sorted(kept)
    assert held == sorted(held)
    assert len(held) == 20
    assert held != hold_out(range(100), 20, "validation", 1)[1]


def test_shuffling_gives_the_same_order_on_every_machine() -> None:
    assert shuffled(range(8), "classes", 1) == [3, 7, 1, 0, 6, 5, 4, 2]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 255, 256, 1000])
def test_shuffling_is_that_of_python(count: int) -> None:
    expected = list(range(count))
    random.Random(derive("x", count)).shuffle(expected)
    assert shuffled(range(count), "x", count) == expected


def test_dividing_takes_the_same_number_of_each_class() -> None:
    train, test = divide(samples(8), 2, Seeds())
    assert Counter(test.labels) == dict.fromkeys(range(CLASSES), 2)
    assert sorted([*train.ids, *test.ids]) == list(range(CLASSES * 8))


def test_views_share_one_division_of_the_images() -> None:
    plain = samples(10)
    views = dict.fromkeys(("left", "right", "top", "bottom"), plain)
    sequence = split_by_view(views, name="V", train=4, validation=2, test=3, seeds=Seeds(), normalise=NORMALISE)
    assert {task.name.split(" #")[0] for task in sequence.tasks} == set(views)
    assert len({task.name.split(" #")[1] for task in sequence.tasks}) == 4, "each task has its own training order"
    assert all(Counter(task.train.labels.tolist()) == dict.fromkeys(range(CLASSES), 4) for task in sequence.tasks)
    assert len({frozenset(numbers(task.train)) for task in sequence.tasks}) > 1, "each draws its own from what is left"
    assert len({frozenset(numbers(task.val)) for task in sequence.tasks}) == 1
    tested = {n for test in sequence.tests for n in numbers(test)}
    used = {n for task in sequence.tasks for part in ("train", "val") for n in numbers(getattr(task, part))}
    assert len(tested) == 3 * CLASSES
    assert not tested & used
    orders = {
        tuple(
            task.name
            for task in split_by_view(
                views, name="V", train=4, validation=2, test=3, seeds=Seeds(order=seed), normalise=NORMALISE
            ).tasks
        )
        for seed in range(5)
    }
    assert len(orders) > 1
    assert len({frozenset(order) for order in orders}) == 1, "a task keeps its name wherever it stands"


def test_counts_that_disagree_are_refused() -> None:
    with pytest.raises(ValueError, match="2 images, 1 labels, 2 ids"):
        LabelledImages(np.zeros((2, 1, 2, 2), np.uint8), np.zeros(1, int), np.arange(2))


sizes_of_classes = st.dictionaries(st.integers(0, 99), st.integers(0, 50), min_size=1, max_size=8)


@given(sizes_of_classes, st.data())
def test_shares_add_up_and_stay_within_one_of_the_exact_proportion(sizes: dict[int, int], data: st.DataObject) -> None:
    whole = sum(sizes.values())
    total = data.draw(st.integers(0, whole))
    shares = apportion(sizes, total)
    assert sum(shares.values()) == total
    for label, size in sizes.items():
        assert 0 <= shares[label] <= size
        assert abs(shares[label] - size * total / max(1, whole)) < 1


@given(sizes_of_classes, st.data())
def test_drawn_sets_are_disjoint_and_of_the_sizes_asked_for(sizes: dict[int, int], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, sum(sizes.values())))
    second = data.draw(st.integers(0, sum(sizes.values()) - first))
    rows = {label: [1000 * label + number for number in range(size)] for label, size in sizes.items()}
    drawn = draw(rows, (first, second), "test", 1)
    assert [len(part) for part in drawn] == [first, second]
    together = [*drawn[0], *drawn[1]]
    assert len(set(together)) == len(together)
    assert set(together) <= {row for of_class in rows.values() for row in of_class}


def test_more_than_there_is_cannot_be_drawn() -> None:
    with pytest.raises(DataError, match="cannot draw 4 of 3 images"):
        draw({0: [1, 2], 1: [3]}, (3, 1), "test", 1)
