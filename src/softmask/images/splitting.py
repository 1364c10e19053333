"""From images to tasks. All random choices of the data are drawn here, each from a seed with a name.

Only `shuffled` draws, and it draws bits alone (`random.Random.getrandbits`): unlike the generators and shuffles of
numpy and torch, these are the same in every version and on every machine, so that a seed stands for the same samples
everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from softmask.errors import DataError
from softmask.images.labelled import Counts, LabelledImages, Part, Parts, make_sequence, make_task
from softmask.learning.seeds import Seeds, derive
from softmask.learning.task import Batches, Normalisation, Task, TaskSequence

T = TypeVar("T")
Rows = Mapping[int, Sequence[int]]
"""Rows of each class."""

# Held out of images without a test set: enough to measure accuracy, few enough to leave most images for training.
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1


def shuffled(items: Iterable[T], *purpose: int | str) -> list[T]:
    """The items in a random order that follows from the purpose (its name, then a seed) alone."""
    order = list(items)
    bits = random.Random(derive(*purpose)).getrandbits
    # As `random.shuffle`, written out: a function call for each of millions of images is slow.
    for last in range(len(order) - 1, 0, -1):
        length = (last + 1).bit_length()
        other = bits(length)
        while other > last:
            other = bits(length)
        order[last], order[other] = order[other], order[last]
    return order


def hold_out(rows: Sequence[int], count: int, *purpose: int | str) -> tuple[list[int], list[int]]:
    """The rows without `count` of them drawn at random, and those; both in the order given."""
    if not 0 <= count < len(rows):
        raise DataError(f"cannot hold {count} of {len(rows)} images out for {purpose[0]}: some must be left")
    drawn = set(shuffled(rows, *purpose)[:count])
    return [row for row in rows if row not in drawn], [row for row in rows if row in drawn]


def hold_out_each(rows: Rows, count: int, purpose: str, seed: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """`hold_out` in each class separately. The draw of a class does not depend on the other classes."""
    parts = {label: hold_out(of_class, count, purpose, seed, label) for label, of_class in rows.items()}
    return {label: kept for label, (kept, _) in parts.items()}, {label: held for label, (_, held) in parts.items()}


def apportion(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """`total` shared out in proportion to the sizes, in integers; the largest remainders are rounded up."""
    available = sum(sizes.values())
    if not 0 <= total <= available:
        raise DataError(f"cannot draw {total} of {available} images")
    exact = {label: divmod(size * total, max(1, available)) for label, size in sizes.items()}
    left = total - sum(quota for quota, _ in exact.values())
    favoured = sorted(exact, key=lambda label: (-exact[label][1], label))[:left]
    return {label: quota + (label in favoured) for label, (quota, _) in exact.items()}


def draw(rows: Rows, counts: Sequence[int], *purpose: int | str) -> list[list[int]]:
    """Disjoint random sets of these sizes; in each, every class has about the share that it has in all rows."""
    left = {label: shuffled(of_class, *purpose, label) for label, of_class in rows.items()}
    quotas = apportion({label: len(of_class) for label, of_class in left.items()}, sum(counts))
    drawn = []
    for count in counts:
        now = apportion(quotas, count)
        drawn.append(_joined(left[label][: now[label]] for label in left))
        left = {label: of_class[now[label] :] for label, of_class in left.items()}
        quotas = {label: quota - now[label] for label, quota in quotas.items()}
    return drawn


def divide(samples: LabelledImages, test: int, seeds: Seeds) -> tuple[LabelledImages, LabelledImages]:
    """Images without an official test set, divided into training and `test` test images a class."""
    kept, held = hold_out_each(samples.rows_by_class(), test, "test", seeds.split)
    return samples.take(_joined(kept.values())), samples.take(_joined(held.values()))


def split_by_class(
    train: LabelledImages,
    test: LabelledImages,
    *,
    name: str,
    tasks: int,
    validation: int,
    seeds: Seeds,
    normalise: Normalisation,
    class_names: Sequence[str],
    stratified: bool = True,
) -> TaskSequence:
    """The classes in a random order, cut into `tasks` groups of equal size: tasks that share no class.

    `validation` images of each class are held out for validation. Not `stratified`, as the paper's authors do it,
    as many are drawn from all of a task's images instead, and classes differ in how many they give.
    """
    train_rows, test_rows = train.rows_by_class(), test.rows_by_class()
    made: list[tuple[Task, Batches]] = []
    for group in _class_groups(len(class_names), tasks, seeds):
        rows = {label: train_rows[label] for label in group}
        if stratified:
            by_class = hold_out_each(rows, validation, "validation", seeds.split)
            kept, held = (_joined(part.values()) for part in by_class)
        else:
            count = validation * len(group)
            kept, held = hold_out(_joined(rows.values()), count, "validation", seeds.split, *group)
        tested = _joined(test_rows[label] for label in group)
        parts = _parts(train, kept, held, test, tested, seeds, *group)
        made.append(make_task(len(made), ",".join(class_names[label] for label in group), group, parts, normalise))
    return make_sequence(name, made, train.shape, similar=False)


def split_in_order(
    train: LabelledImages,
    test: LabelledImages,
    *,
    name: str,
    tasks: int,
    validation: float,
    seeds: Seeds,
    normalise: Normalisation,
    class_names: Sequence[str],
) -> TaskSequence:
    """The classes in their own order, cut into `tasks` groups of equal size.

    The share `validation` of a task's images is held out, whatever their classes. All parts are mixed: a network that
    normalises by the statistics of a batch must not meet one class after the other.
    """
    train_rows, test_rows = train.rows_by_class(), test.rows_by_class()
    made: list[tuple[Task, Batches]] = []
    for group in _equal_groups(list(range(len(class_names))), tasks):
        rows = _joined(train_rows[label] for label in group)
        kept, held = hold_out(rows, int(validation * len(rows)), "validation", seeds.split, *group)
        held = shuffled(held, "validation order", seeds.split, *group)
        tested = shuffled(_joined(test_rows[label] for label in group), "test order", seeds.split, *group)
        parts = _parts(train, kept, held, test, tested, seeds, *group)
        made.append(make_task(len(made), ",".join(class_names[label] for label in group), group, parts, normalise))
    return make_sequence(name, made, train.shape, similar=False)


def draw_by_class(
    train: LabelledImages,
    test: LabelledImages,
    *,
    name: str,
    tasks: int,
    counts: Counts,
    seeds: Seeds,
    normalise: Normalisation,
    class_names: Sequence[str],
    where: str,
) -> TaskSequence:
    """Like `split_by_class` for classes of unequal size: a fixed number is drawn for each task, not for each class.

    `where` names the data in messages.
    """
    train_rows, test_rows = train.rows_by_class(), test.rows_by_class()
    made: list[tuple[Task, Batches]] = []
    for group in _class_groups(len(class_names), tasks, seeds):
        of_group, tested_of_group = ({label: rows[label] for label in group} for rows in (train_rows, test_rows))
        try:
            kept, held = draw(of_group, (counts.train, counts.validation), "training", seeds.split)
            (tested,) = draw(tested_of_group, (counts.test,), "test", seeds.split)
        except DataError as error:
            raise DataError(f"{where}: too few images for task {len(made) + 1} of {name}: {error}") from None
        parts = _parts(train, kept, held, test, tested, seeds, *group)
        made.append(make_task(len(made), ",".join(class_names[label] for label in group), group, parts, normalise))
    return make_sequence(name, made, train.shape, similar=False)


def split_by_view(
    views: Mapping[str, LabelledImages],
    *,
    name: str,
    train: int,
    validation: int,
    test: int,
    seeds: Seeds,
    normalise: Normalisation,
) -> TaskSequence:
    """One task for each view of the same images, in a random order: similar tasks with the same classes.

    The images are divided once for all views: a test image of one task is a training image of none. Of those
    to train on, each view draws its own, `train` of each class.
    """
    some_view = next(iter(views.values()))
    rest, tested = hold_out_each(some_view.rows_by_class(), test, "test", seeds.split)
    kept, held = hold_out_each(rest, validation, "validation", seeds.split)
    made: list[tuple[Task, Batches]] = []
    for view in shuffled(views, "tasks", seeds.order):
        of_view = views[view]
        _, drawn = hold_out_each(kept, train, f"training {view}", seeds.split)
        trained, validated, held_back = (_joined(part.values()) for part in (drawn, held, tested))
        parts = _parts(of_view, trained, validated, of_view, held_back, seeds, view)
        made.append(make_task(len(made), view, list(rest), parts, normalise))
    return make_sequence(name, made, some_view.shape, similar=True)


class User(NamedTuple):
    """One person's images (or one pool of people's), and how many of them to use."""

    name: str
    train: LabelledImages
    test: LabelledImages
    counts: Counts


def split_by_user(
    users: Sequence[User], *, name: str, classes: int, seeds: Seeds, normalise: Normalisation
) -> TaskSequence:
    """One task for each user, in a random order: similar tasks with the same classes."""
    made: list[tuple[Task, Batches]] = []
    for user in shuffled(users, "tasks", seeds.order):
        wanted = (user.counts.train, user.counts.validation)
        kept, held = draw(user.train.rows_by_class(), wanted, "training", seeds.split, user.name)
        (tested,) = draw(user.test.rows_by_class(), (user.counts.test,), "test", seeds.split, user.name)
        parts = _parts(user.train, kept, held, user.test, tested, seeds, user.name)
        made.append(make_task(len(made), user.name, range(classes), parts, normalise))
    return make_sequence(name, made, users[0].train.shape, similar=True)


class Given(NamedTuple):
    """A task as its author divided it; validation and test set may be missing."""

    name: str
    classes: int
    train: LabelledImages
    validation: LabelledImages | None
    test: LabelledImages | None


def split_as_given(
    tasks: Sequence[Given], *, name: str, similar: bool, seeds: Seeds, normalise: Normalisation
) -> TaskSequence:
    """The tasks in the order given. Missing test and validation images are held out of the training images."""
    made: list[tuple[Task, Batches]] = []
    for place, task in enumerate(tasks):
        rest, test = _own_or_held_out(task.train.rows_by_class(), task, "test", seeds)
        kept, validation = _own_or_held_out(rest, task, "validation", seeds)
        train = Part(task.train, shuffled(_joined(kept.values()), "training order", seeds.split, task.name))
        parts = Parts(train, validation, test)
        made.append(make_task(place, task.name, range(task.classes), parts, normalise))
    return make_sequence(name, made, tasks[0].train.shape, similar=similar)


def _own_or_held_out(rows: Rows, task: Given, which: str, seeds: Seeds) -> tuple[Rows, Part]:
    """The rows that are left for training, and the test or validation set."""
    own: LabelledImages | None = getattr(task, which)
    if own is not None:
        return rows, Part(own, _joined(own.rows_by_class().values()))
    share = TEST_SHARE if which == "test" else VALIDATION_SHARE
    parts = {
        label: hold_out(of_class, max(1, round(share * len(of_class))), which, seeds.split, task.name, label)
        for label, of_class in rows.items()
    }
    held = _joined(of_class for _, of_class in parts.values())
    return {label: kept for label, (kept, _) in parts.items()}, Part(task.train, held)


def _class_groups(classes: int, tasks: int, seeds: Seeds) -> Iterator[list[int]]:
    """Which classes form which task."""
    return _equal_groups(shuffled(range(classes), "classes", seeds.order), tasks)


def _equal_groups(order: list[int], tasks: int) -> Iterator[list[int]]:
    per_task, left_over = divmod(len(order), tasks)
    if left_over:
        raise ValueError(f"{len(order)} classes cannot be cut into {tasks} equal tasks")
    for first in range(0, len(order), per_task):
        yield order[first : first + per_task]


def _parts(
    train: LabelledImages,
    kept: Sequence[int],
    held: Sequence[int],
    test: LabelledImages,
    tested: Sequence[int],
    seeds: Seeds,
    *who: int | str,
) -> Parts:
    """The training images are shuffled once, because the paper's training loop never does."""
    order = shuffled(kept, "training order", seeds.split, *who)
    return Parts(Part(train, order), Part(train, held), Part(test, tested))


def _joined(parts: Iterable[Sequence[int]]) -> list[int]:
    return [row for part in parts for row in part]
