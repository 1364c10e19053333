"""Labelled pictures, and the tasks that are made of chosen rows of them. Nothing is drawn at random here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from softmask.images.chosen import ChosenImages
from softmask.learning.task import Batches, Normalisation, Task, TaskSequence, sample_digest

# The constants of the paper's authors, used for every set of colour pictures.
COLOUR = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def content_id(content: bytes) -> int:
    """An id from what a picture is: another one in its place must not pass for the same."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


class Counts(NamedTuple):
    """How many pictures: of a class or of a task, wherever this stands."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures in the order in which they are stored."""

    images: npt.NDArray[np.uint8]
    """Shape (count, channels, height, width); may be memory-mapped."""
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    """What each picture is called in draws and digests, so that the order of storage does not matter."""

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.labels) == len(self.ids):
            raise ValueError(f"{len(self.images)} images, {len(self.labels)} labels, {len(self.ids)} ids")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def rows_by_class(self) -> dict[int, list[int]]:
        """The rows of each class in the order of their ids."""
        by_id = np.argsort(self.ids, kind="stable")
        labels = self.labels[by_id]
        by_class = np.argsort(labels, kind="stable")
        found, starts = np.unique(labels[by_class], return_index=True)
        parts = np.split(by_id[by_class], starts[1:])
        return {label: rows.tolist() for label, rows in zip(found.tolist(), parts, strict=True)}

    def take(self, rows: Sequence[int]) -> Pictures:
        """A copy of these rows."""
        return Pictures(self.images[rows], self.labels[rows], self.ids[rows])

    def between(self, first: int, last: int) -> Pictures:
        """The rows from `first` up to `last`, not copied."""
        return Pictures(self.images[first:last], self.labels[first:last], self.ids[first:last])


class Part(NamedTuple):
    """Some rows of some pictures: a training, validation or test set that has not been copied yet."""

    pictures: Pictures
    rows: Sequence[int]

    def ids(self) -> list[int]:
        ids: list[int] = self.pictures.ids[list(self.rows)].tolist()
        return ids

    def batches(self, classes: Sequence[int], normalise: Normalisation, *, copied: bool) -> Batches:
        """The set with each class numbered by its position in the task."""
        position = np.zeros(max(classes) + 1, np.int64)
        position[list(classes)] = np.arange(len(classes))
        rows = np.array(self.rows, np.intp)
        labels = torch.from_numpy(position[self.pictures.labels[rows]])
        images = ChosenImages(self.pictures.images, rows)
        return Batches(images.copied() if copied else images, labels, normalise=normalise)


class Parts(NamedTuple):
    """What a task is made of."""

    train: Part
    validation: Part
    test: Part


def make_task(
    place: int, contents: str, classes: Sequence[int], parts: Parts, normalise: Normalisation
) -> tuple[Task, Batches]:
    """A task and, apart from it, its test set. `contents` and a digest of the samples make up the task's name.

    Pictures that are mapped from a file stay there. Where one array holds training and test pictures, both are copied
    out of it: a method that is given the task must not be able to reach the test pictures.
    """
    tested = parts.test.pictures.images
    mapped = all(isinstance(part.pictures.images, np.memmap) for part in parts)
    copied = not mapped or any(np.may_share_memory(part.pictures.images, tested) for part in parts[:2])
    train, val, test = (part.batches(classes, normalise, copied=copied) for part in parts)
    digest = sample_digest(*(part.ids() for part in parts))
    return Task((place,), f"{contents} #{digest}", len(classes), train, val), test


def make_sequence(
    name: str, made: Sequence[tuple[Task, Batches]], shape: tuple[int, int, int], *, similar: bool
) -> TaskSequence:
    return TaskSequence(name, tuple(task for task, _ in made), tuple(test for _, test in made), shape, similar)


def whole(label: Any) -> int:
    """A label; 1.9 is none, and must not become 1."""
    number = int(label)
    if number != label:
        raise ValueError(f"a label must be a whole number, not {label}")
    return number
