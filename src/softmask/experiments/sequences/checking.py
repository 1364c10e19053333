"""Checks the data on disk: every sequence is loaded, counted and compared with the paper's table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from softmask.errors import DataError, problems_in
from softmask.experiments.paper import paper_tables
from softmask.experiments.sequences import SEQUENCES, load_sequence, sequence_facts
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence


class Sizes(NamedTuple):
    """A row of the paper's table: classes of each task, images of all tasks together."""

    tasks: int
    classes: int
    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Checked:
    """The result for one sequence."""

    name: str
    found: Path | None
    """The location of the data; None if they come with an installed package or were not found."""
    sizes: Sizes | None
    paper: Sizes | None
    problems: tuple[str, ...] = ()
    """The reasons why the sequence cannot be used."""
    notes: tuple[str, ...] = field(default=())
    """Harmless differences."""


def find(name: str, root: Path | None) -> Path | None:
    """The location of a sequence's data; None if it needs none or has no `locate`. DataError if they are missing."""
    facts = sequence_facts(name)
    if facts.source is None or facts.source.locate is None:
        return None
    if root is None:
        raise facts.source.missing(name)
    return facts.source.locate(root, facts.tasks)


def sizes_in_paper(name: str) -> Sizes | None:
    row = paper_tables()["sequences"].get(name)
    return Sizes(row["tasks"], row["classes_per_task"], row["train"], row["validation"], row["test"]) if row else None


def check(names: Iterable[str], root: Path | None) -> list[Checked]:
    """All of these sequences; a problem of one does not keep the others from being checked."""
    return [check_one(name, root) for name in names]


def check_one(name: str, root: Path | None) -> Checked:
    found, paper = None, sizes_in_paper(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = find(name, root)
            sequence = load_sequence(name, root, Seeds())
        except DataError as error:
            return Checked(name, found, None, paper, problems_in(error))
    notes = [str(warning.message) for warning in caught]
    sizes = sizes_of(sequence)
    if paper is not None and sizes != paper:
        different = [
            f"{what} {here:,} instead of {there:,}"
            for what, here, there in zip(Sizes._fields, sizes, paper, strict=True)
            if here != there
        ]
        notes.append(f"{name} is not the paper's: {', '.join(different)}")
    if leaked := tested_and_trained(sequence):
        notes.append(
            f"{name}: {leaked:,} of {sizes.test:,} test images are trained or validated on, too, in their task"
        )
    return Checked(name, found, sizes, paper, tuple(_problems(sequence)), tuple(dict.fromkeys(notes)))


def sizes_of(sequence: TaskSequence) -> Sizes:
    return Sizes(
        tasks=len(sequence.tasks),
        classes=max(sequence.classes),
        train=sum(task.train.count for task in sequence.tasks),
        validation=sum(task.val.count for task in sequence.tasks),
        test=sum(test.count for test in sequence.tests),
    )


def tested_and_trained(sequence: TaskSequence) -> int:
    """How many test images stand, pixel for pixel, among the training or validation images of the same task."""
    count = 0
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        seen = {row.tobytes() for part in (task.train, task.val) for row in part.images.numpy()}
        count += sum(row.tobytes() in seen for row in test.images.numpy())
    return count


def _problems(sequence: TaskSequence) -> list[str]:
    """Problems between tasks, which cannot be detected in a single file."""
    problems = []
    names = [task.name for task in sequence.tasks]
    if len(set(names)) != len(names):
        problems.append(f"{sequence.name}: two tasks have the same samples")
    for task, test in zip(sequence.tasks, sequence.tests, strict=True):
        for what, part in (("training", task.train), ("validation", task.val), ("test", test)):
            if tuple(part.images.shape[1:]) != sequence.input_shape:
                problems.append(f"{sequence.name}, {task.name}: {what} images of shape {tuple(part.images.shape[1:])}")
        untaught = set(test.labels.tolist()) - set(task.train.labels.tolist())
        if untaught:
            problems.append(f"{sequence.name}, {task.name}: tested on {len(untaught)} classes that are never trained")
        first = next(iter(task.train))[0]
        if not torch.isfinite(first).all():
            problems.append(f"{sequence.name}, {task.name}: numbers that are not finite")
    return problems


def names_to_check(wanted: Iterable[str]) -> list[str]:
    """The sequences named, or all that need data."""
    return list(wanted) or [name for name in SEQUENCES.names() if sequence_facts(name).needs_data]
