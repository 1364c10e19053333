"""A sequence from data that are already in memory, or in anything that torch calls a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from softmask.errors import DataError
from softmask.images.labelled import integer_label, make_sequence
from softmask.learning.task import Batches, Normalisation, Task, TaskSequence, sample_digest

Samples = Dataset[Any] | tuple[Tensor, Tensor]
"""A dataset of pairs (image, label), or a tensor of images and one of labels."""

CENTRED = 0.5


def sequence_from(
    name: str,
    tasks: Iterable[tuple[Samples, Samples, Samples]],
    *,
    names: Sequence[str] | None = None,
    similar: bool = False,
    normalise: Normalisation | None = None,
) -> TaskSequence:
    """One task for each triple of training, validation and test samples, in the order given.

    Images have the shape (channels, height, width), the same in all tasks; labels are 0, 1, ... in each task. Bytes
    (uint8) are scaled to -1..1 unless `normalise` says otherwise; floating-point images are used as they are,
    normalised or not. A dataset is read once, so a random augmentation in it is drawn only once.
    """
    triples = [tuple(_tensors(samples) for samples in triple) for triple in tasks]
    if not triples:
        raise DataError(f"{name}: a sequence needs at least one task")
    titles = list(names) if names is not None else [f"task {place + 1}" for place in range(len(triples))]
    if len(titles) != len(triples):
        raise DataError(f"{name}: {len(titles)} names for {len(triples)} tasks")
    made = [
        _task(place, title, parts, normalise) for place, (title, parts) in enumerate(zip(titles, triples, strict=True))
    ]
    shapes = {tuple(images.shape[1:]) for parts in triples for images, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"{name}: images of several shapes, {' and '.join(map(str, sorted(shapes)))}; make them alike")
    channels, height, width = shapes.pop()
    return make_sequence(name, made, (channels, height, width), similar=similar)


def _task(
    place: int, title: str, parts: Sequence[tuple[Tensor, Tensor]], normalise: Normalisation | None
) -> tuple[Task, Batches]:
    if len(parts) != 3:
        raise DataError(f"{title}: {len(parts)} sets of samples; expected three: training, validation and test")
    for what, (images, labels) in zip(("training", "validation", "test"), parts, strict=True):
        _check(f"{title}, {what} samples", images, labels)
    batches = [_batches(images, labels, normalise) for images, labels in parts]
    classes = 1 + max(int(labels.max()) for _, labels in parts)
    if len(parts[0][1].unique()) < classes:
        raise DataError(f"{title}: labels go up to {classes - 1}, but some below are never trained; number them from 0")
    digest = sample_digest(*(_ids(images, labels) for images, labels in parts))
    return Task((place,), f"{title} #{digest}", classes, batches[0], batches[1]), batches[2]


def _tensors(samples: Samples) -> tuple[Tensor, Tensor]:
    if isinstance(samples, (tuple, list)) and len(samples) == 2 and all(hasattr(part, "shape") for part in samples):
        images, labels = (torch.as_tensor(np.ascontiguousarray(part)) for part in samples)
    else:
        items = [samples[place] for place in range(len(samples))]  # type: ignore[arg-type]
        if not items:
            raise DataError("a dataset without samples")
        try:
            images = torch.stack([as_tensor(image) for image, _ in items])
            labels = torch.tensor([integer_label(label) for _, label in items])
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"expected tensors of images and labels, or a dataset of such pairs: {error}") from None
    return (images.to(torch.float32) if images.is_floating_point() else images), labels


def as_tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image
    array = np.array(image)  # a Pillow image or an array: rows of pixels
    return torch.from_numpy(array[np.newaxis] if array.ndim == 2 else np.moveaxis(array, -1, 0))


def _check(what: str, images: Tensor, labels: Tensor) -> None:
    if images.ndim != 4 or not len(images):
        raise DataError(f"{what}: shape {tuple(images.shape)}, expected (count, channels, height, width)")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(f"{what}: type {images.dtype}, expected bytes (uint8) or floating-point numbers")
    if not images.isfinite().all():
        raise DataError(f"{what}: some pixels are not finite")
    if labels.is_floating_point() or labels.shape != (len(images),) or int(labels.min()) < 0:
        raise DataError(f"{what}: labels must be {len(images)} integers from 0")


def _batches(images: Tensor, labels: Tensor, normalise: Normalisation | None) -> Batches:
    if images.is_floating_point():
        return Batches(images, labels.to(torch.int64))
    if normalise is None:
        normalise = Normalisation((CENTRED,) * images.shape[1], (CENTRED,) * images.shape[1])
    return Batches(images, labels.to(torch.int64), normalise=normalise)


def _ids(images: Tensor, labels: Tensor) -> list[int]:
    """An id from the content, so that different samples under the same name are different tasks."""
    pairs = zip(images.contiguous().numpy(), labels.tolist(), strict=True)
    return [
        int.from_bytes(hashlib.blake2b(image.tobytes() + bytes(str(label), "ascii"), digest_size=8).digest(), "big")
        for image, label in pairs
    ]
