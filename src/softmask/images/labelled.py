"""Labelled images, and the tasks that are made of chosen rows of them. Nothing is drawn at random here."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softmask.learning.task import Batches, Normalisation, Task, TaskSequence, sample_digest

# The constants of the paper's authors, used for every set of colour images.
COLOUR = Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


def content_id(content: bytes) -> int:
    """An id from the content of an image."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


class Counts(NamedTuple):
    """Numbers of images, of a class or of a task."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class LabelledImages:
    """Labelled images in the order in which they are stored."""

    images: npt.NDArray[np.uint8]
    """Shape (count, channels, height, width); may be memory-mapped."""
    labels: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]
    """The name of each image in draws and digests, so that the order of storage does not matter."""

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

    def take(self, rows: Sequence[int]) -> LabelledImages:
        """A copy of these rows."""
        return LabelledImages(self.images[rows], self.labels[rows], self.ids[rows])

    def between(self, first: int, last: int) -> LabelledImages:
        """The rows from `first` up to `last`, not copied."""
        return LabelledImages(self.images[first:last], self.labels[first:last], self.ids[first:last])


# Answered from the shape alone.
_METADATA = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.nbytes.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.__len__,
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
}


class ChosenImages(Tensor):
    """A tensor without memory of its own, over rows of a (memory-mapped) array.

    Slices and rows picked by index are copied out of the array; every other operation first copies all rows. A million
    mapped images are thus available at once and need only the memory of those that were used.
    """

    stored: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.intp]

    @staticmethod
    def __new__(cls, stored: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp]) -> ChosenImages:
        shape = (len(rows), *stored.shape[1:])
        made: ChosenImages = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.uint8)
        made.stored, made.rows = stored, rows
        return made

    def copied(self, which: slice | npt.NDArray[np.intp] = slice(None)) -> Tensor:
        """Some of the rows as an ordinary tensor."""
        return torch.from_numpy(np.ascontiguousarray(self.stored[self.rows[which]]))

    @classmethod
    def __torch_function__(
        cls, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if operation in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return operation(*arguments)
        if operation is Tensor.__getitem__ and isinstance(arguments[0], cls):
            images, which = arguments
            if isinstance(which, slice):
                return images.copied(which)
            if isinstance(which, Tensor) and which.dtype == torch.int64:
                return images.copied(which.numpy())
        return operation(*map(_copied, arguments), **{name: _copied(value) for name, value in (named or {}).items()})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """For calls that bypass `__torch_function__`; batches do not, since the first use makes torch import a lot."""
        return operation(*map(_copied, arguments), **{name: _copied(value) for name, value in (named or {}).items()})


def _copied(value: Any) -> Any:
    if isinstance(value, ChosenImages):
        return value.copied()
    return type(value)(map(_copied, value)) if isinstance(value, list | tuple) else value


class Part(NamedTuple):
    """Some rows of some images: a training, validation or test set that has not been copied yet."""

    samples: LabelledImages
    rows: Sequence[int]

    def ids(self) -> list[int]:
        ids: list[int] = self.samples.ids[list(self.rows)].tolist()
        return ids

    def batches(self, classes: Sequence[int], normalise: Normalisation, *, copied: bool) -> Batches:
        """The set with each class numbered by its position in the task."""
        position = np.zeros(max(classes) + 1, np.int64)
        position[list(classes)] = np.arange(len(classes))
        rows = np.array(self.rows, np.intp)
        labels = torch.from_numpy(position[self.samples.labels[rows]])
        images = ChosenImages(self.samples.images, rows)
        return Batches(images.copied() if copied else images, labels, normalise=normalise)


class Parts(NamedTuple):
    """Training, validation and test set of a task."""

    train: Part
    validation: Part
    test: Part


def make_task(
    place: int, contents: str, classes: Sequence[int], parts: Parts, normalise: Normalisation
) -> tuple[Task, Batches]:
    """A task and, apart from it, its test set. `contents` and a digest of the samples make up the task's name.

    Images that are mapped from a file stay there. Where one array holds training and test images, both are copied
    out of it: a method that is given the task must not be able to reach the test images.
    """
    tested = parts.test.samples.images
    mapped = all(isinstance(part.samples.images, np.memmap) for part in parts)
    copied = not mapped or any(np.may_share_memory(part.samples.images, tested) for part in parts[:2])
    train, val, test = (part.batches(classes, normalise, copied=copied) for part in parts)
    digest = sample_digest(*(part.ids() for part in parts))
    return Task((place,), f"{contents} #{digest}", len(classes), train, val), test


def make_sequence(
    name: str, made: Sequence[tuple[Task, Batches]], shape: tuple[int, int, int], *, similar: bool
) -> TaskSequence:
    return TaskSequence(name, tuple(task for task, _ in made), tuple(test for _, test in made), shape, similar)


def integer_label(label: Any) -> int:
    """A label as an integer; 1.9 is an error and does not become 1."""
    number = int(label)
    if number != label:
        raise ValueError(f"a label must be an integer, not {label}")
    return number
