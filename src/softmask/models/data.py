"""The data of a model: folders of images, torch datasets, tensors."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from softmask.errors import DataError, DataErrors, Problems
from softmask.images.decoding import (
    any_kind,
    decode,
    images_below,
    in_colour,
    is_divided,
    known_endings,
    no_images,
    read_image,
    require_parts_only,
)
from softmask.images.labelled import integer_label
from softmask.images.splitting import VALIDATION_SHARE, hold_out, shuffled
from softmask.learning.task import Batches, Normalisation
from softmask.models.description import MOST_CLASSES, check_name

Shape = tuple[int, ...]
Source = Any
"""A folder, `(x, y)` tensors, or a dataset of `(x, y)` pairs."""
BATCH = 256
MOST_NAMED = 10


@dataclass(frozen=True)
class Labelled:
    """Inputs with the positions of their classes. Bytes are pixels, not yet normalised."""

    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...]

    def within(self, classes: Sequence[str]) -> Labelled:
        """The same samples with their classes numbered as in `classes`."""
        position = {name: index for index, name in enumerate(classes)}
        for name in self.classes:
            if name not in position:
                raise DataError(f"the validation set has the class {name!r}, but the training set does not")
        order = torch.tensor([position[name] for name in self.classes])
        return Labelled(self.inputs, order[self.labels], tuple(classes))

    def take(self, rows: Sequence[int]) -> Labelled:
        which = torch.tensor(rows, dtype=torch.int64)
        return Labelled(self.inputs[which], self.labels[which], self.classes)

    def batches(self, normalise: Normalisation | None) -> Batches:
        return Batches(self.inputs, self.labels, normalise=normalise_bytes(self.inputs, normalise))


def kind_of(inputs: Tensor) -> str:
    return "bytes" if inputs.dtype == torch.uint8 else "floats"


def normalise_bytes(inputs: Tensor, normalise: Normalisation | None) -> Normalisation | None:
    """Bytes are pixels and are normalised; floats are used as they are."""
    if inputs.dtype != torch.uint8:
        return None
    if normalise is None:
        raise DataError("inputs of bytes are taken as images (channels, height, width); give floats for anything else")
    return normalise


def read_task(
    train: Source,
    val: Source | None,
    shape: Shape,
    classes: Sequence[str] | None,
    purpose: tuple[int, str],
    *,
    keep_empty_classes: bool = False,
    strict: bool = True,
    fewest: int = 2,
) -> tuple[Labelled, Labelled]:
    """Training and validation set; a tenth of each class is held out where no validation set is given.

    Image files that cannot be read are an error if `strict`, and skipped with a warning otherwise. A class without
    samples is dropped, unless `keep_empty_classes`: an adopted head has outputs for all its classes. More data for a
    known task may be of a single class (`fewest`).
    """
    if isinstance(train, (str, os.PathLike)) and is_divided(Path(train)):
        folder = Path(train)
        require_parts_only(folder)
        train, val = folder / "train", folder / "val" if val is None and (folder / "val").is_dir() else val
    known = read_labelled(train, shape, classes, keep_empty_classes, strict, fewest)
    if not fewest <= len(known.classes) <= MOST_CLASSES:
        raise DataError(f"a task needs at least two classes and at most {MOST_CLASSES}, found {len(known.classes)}")
    for name in known.classes:  # now, not after training
        _require_name(name)
    if twice := [name for name, count in Counter(known.classes).items() if count > 1]:
        raise DataError(f"two classes are called {twice[0]!r}")
    if val is not None:
        named = _names_given(train, val, known, classes)
        held = read_labelled(val, shape, named, strict=strict, fewest=fewest).within(known.classes)
        if (kinds := (kind_of(known.inputs), kind_of(held.inputs)))[0] != kinds[1]:
            raise DataError(f"trained with {kinds[0]} but validated with {kinds[1]}: only bytes are normalised")
        return known.take(shuffled(range(len(known.labels)), *purpose)), held
    kept: list[int] = []
    apart: list[int] = []
    for label, name in enumerate(known.classes):
        rows = torch.nonzero(known.labels == label).flatten().tolist()
        if not rows and keep_empty_classes:
            continue
        if len(rows) < 2:
            raise DataError(f"class {name!r} has {len(rows)} samples: two are needed, one of them for validation")
        parts = hold_out(rows, max(1, round(VALIDATION_SHARE * len(rows))), "validation", *purpose, label)
        kept, apart = kept + parts[0], apart + parts[1]
    return known.take(shuffled(kept, *purpose)), known.take(apart)


def _require_name(name: str) -> None:
    try:
        check_name(name, "a class's name")
    except ValueError as error:
        raise DataError(str(error)) from None


def _names_given(train: Source, val: Source, known: Labelled, classes: Sequence[str] | None) -> Sequence[str] | None:
    """The class names that the labels of a validation set refer to; None if classes are identified by label value."""
    if isinstance(val, (str, os.PathLike)):
        return None
    if classes:
        return classes
    if not _is_pair(val) and _names_of(val) is not None:
        return None  # it has names of its own, which may be fewer or in another order
    if isinstance(train, (str, os.PathLike)):
        return known.classes
    return None if _is_pair(train) else _names_of(train)


def _is_pair(source: Source) -> bool:
    """Inputs and labels as tensors, rather than a dataset."""
    return isinstance(source, (tuple, list)) and len(source) == 2 and all(isinstance(part, Tensor) for part in source)


def read_labelled(
    source: Source,
    shape: Shape,
    classes: Sequence[str] | None = None,
    keep_empty_classes: bool = False,
    strict: bool = True,
    fewest: int = 2,
) -> Labelled:
    if isinstance(source, (str, os.PathLike)):
        if classes is not None:
            raise DataError("a folder names its classes itself: leave `classes` out")
        return _read_folder(Path(source), shape, strict, fewest)
    if _is_pair(source):
        inputs, labels = source
    else:
        inputs, labels = _gathered(source, shape)
        classes = classes or _names_of(source)
    return _numbered(_checked(inputs, shape), labels, classes, keep_empty_classes)


def _numbered(inputs: Tensor, labels: Tensor, classes: Sequence[str] | None, keep_empty: bool) -> Labelled:
    if labels.dim() != 1 or labels.is_floating_point() or len(labels) != len(inputs):
        raise DataError(f"expected {len(inputs)} integer labels, not {tuple(labels.shape)} {labels.dtype}")
    if not len(labels):
        raise DataError("there are no samples")
    found, positions = labels.to(torch.int64).cpu().unique(return_inverse=True)
    if classes is None:
        return Labelled(inputs, positions, tuple(str(value) for value in found.tolist()))
    if int(found[0]) < 0 or int(found[-1]) >= len(classes):
        raise DataError(f"labels from {int(found[0])} to {int(found[-1])} do not fit {len(classes)} class names")
    if keep_empty:
        return Labelled(inputs, labels.to(torch.int64).cpu(), tuple(map(str, classes)))
    return Labelled(inputs, positions, tuple(str(classes[value]) for value in found.tolist()))


def _checked(inputs: Tensor, shape: Shape) -> Tensor:
    if tuple(inputs.shape[1:]) != shape:
        raise DataError(f"the model takes inputs of shape {shape}, these are {tuple(inputs.shape[1:])}")
    inputs = inputs.detach().cpu()
    if inputs.dtype == torch.uint8:
        return inputs
    inputs = inputs.to(torch.float32)
    if not inputs.isfinite().all():
        raise DataError("some inputs are not finite")
    return inputs


def _gathered(source: Iterable[Any], shape: Shape) -> tuple[Tensor, Tensor]:
    """All samples of a dataset, each read once, so that random augmentation in it is applied once."""
    if source is None or isinstance(source, (Tensor, np.ndarray)):
        raise DataError("labels are missing: give a folder of class folders, (x, y) tensors or a dataset of pairs")
    inputs: list[Tensor] = []
    labels: list[int] = []
    try:
        pairs: Iterable[Any] = source if hasattr(source, "__iter__") else (source[i] for i in range(len(source)))  # type: ignore[index,arg-type]
        for x, y in pairs:
            inputs.append(_pixels(np.asarray(in_colour(x)), shape) if isinstance(x, Image.Image) else _tensor(x))
            labels.append(integer_label(y))
    except (TypeError, ValueError) as error:
        raise DataError(f"expected a folder, (x, y) tensors or a dataset of (x, y) pairs: {error}") from None
    if not inputs:
        raise DataError("there are no samples")
    try:
        return torch.stack(inputs), torch.tensor(labels)
    except RuntimeError as error:
        raise DataError(f"samples differ in shape: {error}") from None


def _tensor(x: Any) -> Tensor:
    """An array may be a view that torch cannot share, such as one with its channels reversed."""
    return x if isinstance(x, Tensor) else torch.as_tensor(np.ascontiguousarray(x))


def _names_of(source: Any) -> Sequence[str] | None:
    """torchvision's datasets know the names of their classes."""
    names = getattr(source, "classes", None)
    return names if isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names) else None


def _read_folder(folder: Path, shape: Shape, strict: bool, fewest: int) -> Labelled:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected a folder with one folder of images for each class")
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < fewest:
        raise DataError(f"{folder}: {len(classes)} folders in it; expected one folder of images for each class")
    if beside := sum(path.is_file() and path.suffix.lower() in known_endings() for path in folder.iterdir()):
        warnings.warn(f"{folder}: {beside} images beside the class folders are ignored", stacklevel=2)
    files, labels = [], []
    for label, name in enumerate(classes):
        found = images_below(folder / name)
        if not found:
            raise no_images(folder / name)
        files += found
        labels += [label] * len(found)
    return Labelled(*_read_all(files, labels, shape, strict), tuple(classes))


def _read_all(files: Sequence[str], labels: Sequence[int], shape: Shape, strict: bool) -> tuple[Tensor, Tensor]:
    """All readable images with their labels; the others are counted and named in a warning or an error."""
    problems, images, found = Problems(), [], []
    try:
        for path, label in zip(files, labels, strict=True):
            with problems.collected():
                images.append(load_image(path, shape))
                found.append(label)
        problems.raise_any()
    except DataErrors as error:
        others = [text.split(": ")[0] for text in error.problems[1:MOST_NAMED]]
        more = f"; {len(error.problems) - 1} more: {', '.join(others)}" if others else ""
        message = error.problems[0] + more
        if strict or set(found) != set(labels) or len(images) + len(error.problems) < len(files):
            raise DataError(message) from None
        warnings.warn(f"{len(error.problems)} of {len(files)} images were left out: {message}", stacklevel=2)
    return torch.stack(images), torch.tensor(found)


def load_image(path: str, shape: Shape) -> Tensor:
    """An image file as a tensor of the model's shape."""
    where, content = read_image(path)
    return _decoded(content, where, shape)


def _decoded(content: bytes, where: str, shape: Shape) -> Tensor:
    _, height, width = _image_shape(shape)
    return _pixels(decode(content, where, any_kind(), (height, width)).transpose(1, 2, 0), shape)


def _pixels(colour: np.ndarray[Any, Any], shape: Shape) -> Tensor:
    """From height x width x RGB bytes to the model's shape."""
    channels, height, width = _image_shape(shape)
    image = Image.fromarray(np.ascontiguousarray(colour))
    if image.size != (width, height):  # in colour, as a file is
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.array(image.convert("L" if channels == 1 else "RGB")))
    return pixels.unsqueeze(0) if channels == 1 else pixels.permute(2, 0, 1).contiguous()


def _image_shape(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"images need a model with input shape (1 or 3, height, width), this one has {shape}")
    return shape[0], shape[1], shape[2]


def read_inputs(
    source: Source, shape: Shape, damaged: Callable[[str], None] | None = None
) -> Iterator[tuple[list[str], Tensor]]:
    """Inputs to predict, in batches, with their names: paths of images, or positions.

    An image that cannot be read is an error unless `damaged` is given: then its message is passed to `damaged` and the
    image is skipped.
    """
    if isinstance(source, np.ndarray) and not _is_image(source, shape):
        if source.ndim == 4 and all(_is_image(each, shape) for each in source[:1]):
            source = list(source)
        else:
            try:
                source = _tensor(source)
            except TypeError as error:
                raise DataError(f"expected numbers or images: {error}") from None
    if isinstance(source, Tensor):
        inputs = _checked(source if source.dim() > len(shape) else source.unsqueeze(0), shape)
        for start in range(0, len(inputs), BATCH):
            part = inputs[start : start + BATCH]
            yield [str(start + index) for index in range(len(part))], part
        return
    items = _images_in(source)
    for start in range(0, len(items), BATCH):
        names: list[str] = []
        images: list[Tensor] = []
        for name, item in items[start : start + BATCH]:
            try:
                images.append(_read_one(name, item, shape))
                names.append(name)
            except DataError as error:
                if damaged is None:
                    raise
                damaged(str(error))
        if names:
            yield names, torch.stack(images)


PICTURES = (bytes, bytearray, memoryview, Image.Image, np.ndarray)
"""Images in memory: the content of a file, or pixels."""


def _images_in(source: Source) -> list[tuple[str, Any]]:
    """Each image with its name: the path of a file, the position of one in memory."""
    given = [source] if isinstance(source, (str, os.PathLike, *PICTURES)) else source
    if not isinstance(given, Sequence) or not all(isinstance(each, (str, os.PathLike, *PICTURES)) for each in given):
        raise DataError(
            "expected a tensor of inputs, an image file, a folder, an image in memory (PIL, encoded bytes, height x "
            "width x channels), or a list of such"
        )
    found: list[tuple[str, Any]] = []
    for position, each in enumerate(given):
        if isinstance(each, PICTURES):
            found.append((str(position), each))
            continue
        files = images_below(Path(each)) if Path(each).is_dir() else [str(each)]
        if not files:
            raise no_images(Path(each))
        found += [(path, path) for path in files]
    return found


def _read_one(name: str, item: Any, shape: Shape) -> Tensor:
    """An image from any source, as a tensor of the model's shape."""
    if isinstance(item, str):
        return load_image(item, shape)
    where = f"image {name}"
    if isinstance(item, (bytes, bytearray, memoryview)):
        return _decoded(bytes(item), where, shape)
    if isinstance(item, np.ndarray):
        if not _is_image(item, shape):
            raise DataError(f"{where}: an image is height x width x channels in bytes, not {item.shape} {item.dtype}")
        item = Image.fromarray(np.ascontiguousarray(item[..., 0] if item.shape[2:] == (1,) else item))
    try:
        return _pixels(np.asarray(in_colour(item)), shape)
    except (OSError, ValueError) as error:  # Pillow reads a file only when its pixels are wanted
        raise DataError(f"{where}: not an image, or damaged ({error})") from None


def _is_image(array: np.ndarray[Any, Any], shape: Shape) -> bool:
    """Height x width (x channels) in bytes, unless it is just what the model takes."""
    if array.dtype != np.uint8 or tuple(array.shape) == shape or len(shape) != 3:
        return False
    return array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
