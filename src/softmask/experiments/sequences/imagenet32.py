"""ImageNet at 32x32 pixels in 1000 classes, cut by class into I-100: a hundred tasks of ten classes.

Reads `train_data_batch_1` to `train_data_batch_10` and `val_data`, pickled or as .npz, all in one folder or in those
that the official archives unpack to. Classes have 732 to 1300 images, so 10,000 for training, 1,000 for validation
and 500 for the test are drawn for each task, in proportion to its classes. A row holds an image's red plane, then its
green, then its blue one. (The paper's authors read such rows as pixels, which scrambles the images: numbers that
were measured so cannot be compared.)
Source: P. Chrabaszcz, I. Loshchilov, F. Hutter, A Downsampled Variant of ImageNet, 2017.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softmask.errors import DataError, Problems
from softmask.experiments.sequences import Source, sequence
from softmask.experiments.sequences.array_files import read_dictionary, read_npz
from softmask.experiments.sequences.cache import Facts, cached
from softmask.images.labelled import COLOUR, Counts, LabelledImages
from softmask.images.splitting import draw_by_class
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.storage.arrays import ArrayFile, ArrayFolder
from softmask.storage.reading import files_of_folder

CLASSES, SHAPE = 1000, (3, 32, 32)
PER_TASK = Counts(train=10_000, validation=1_000, test=500)
FILES = {"train": tuple(f"train_data_batch_{number}" for number in range(1, 11)), "test": ("val_data",)}
LARGEST_FILE = 600_000_000  # an official batch has 128,116 rows of 3072 bytes, that is 394 million
FOLDERS = (
    ".",
    "imagenet32",
    *("imagenet/train", "imagenet/test"),  # as the authors of the paper lay them out
    *(f"Imagenet32_{part}{kind}" for kind in ("", "_npz") for part in ("train", "val")),
)
VERSION = 1


def locate(root: Path, tasks: int) -> Path:
    """The first training file."""
    return _find(root, FILES["train"][0])


def _find(root: Path, name: str) -> Path:
    for folder in FOLDERS:
        for ending in ("", ".npz"):
            if (path := root / folder / f"{name}{ending}").is_file():
                return path
    raise SOURCE.not_in(root, f"{name} of 32x32 ImageNet")


SOURCE = Source(
    data="train_data_batch_1 .. train_data_batch_10 and val_data (pickled or .npz), also in folders",
    home="https://image-net.org/download-images",
    terms="for non-commercial research and education only; its owners want an account and their terms accepted",
    obtain="log in there, accept the terms, and take the 32x32 training and validation sets of 'Downsampled ImageNet'",
    locate=locate,
)


@sequence(
    "I-100",
    tasks=100,
    classes=10,
    description="ImageNet at 32x32 pixels by class: a hundred tasks of ten classes",
    source=SOURCE,
    drop1=0.208511,
    drop2=0.360162,
)
def imagenet32_by_class(
    root: Path | None, seeds: Seeds, tasks: int, classes: int = CLASSES, counts: Counts = PER_TASK
) -> TaskSequence:
    assert root is not None, "a sequence that declares data is not made without a root"
    train, test = read_imagenet32(root, classes)
    return draw_by_class(
        train,
        test,
        name=f"I-{tasks}",
        tasks=tasks,
        counts=counts,
        seeds=seeds,
        normalise=COLOUR,
        class_names=[f"class {number}" for number in range(1, classes + 1)],
        where=str(root),
    )


def read_imagenet32(root: Path, classes: int) -> tuple[LabelledImages, LabelledImages]:
    """Training and test images, mapped from the cache. An image's id is its place in the official files."""
    problems = Problems()
    paths: dict[str, list[Path]] = {part: [] for part in FILES}
    for part, names in FILES.items():
        for name in names:
            with problems.collected():
                paths[part].append(_find(root, name))
    problems.raise_any()

    def build(output: ArrayFolder) -> Facts:
        for part, of_part in paths.items():
            _build(output, part, of_part, classes)
        return {}

    stored = cached("imagenet32", VERSION, root, [path for of_part in paths.values() for path in of_part], build)
    parts = []
    for part in paths:
        labels = np.array(stored.arrays[f"{part}_labels"])
        parts.append(LabelledImages(stored.arrays[f"{part}_images"], labels, np.arange(len(labels))))
    return parts[0], parts[1]


def _build(output: ArrayFolder, part: str, paths: list[Path], classes: int) -> None:
    """File by file, so that no more than one of them is ever in memory."""
    images = output.array(f"{part}_images", SHAPE, np.uint8)
    labels = output.array(f"{part}_labels", (), np.int64)
    problems = Problems()
    seen = np.zeros(classes, np.int64)
    for path in paths:
        with problems.collected():
            seen += _add_file(path, images, labels, classes)
    problems.raise_any()
    if not seen.all():
        missing = int((seen == 0).sum())
        raise DataError(f"{paths[0].parent}: {missing} of {classes} classes have no image for {part}")


def _add_file(path: Path, images: ArrayFile, labels: ArrayFile, classes: int) -> npt.NDArray[np.int64]:
    """The number of images of each class. The file's content is no longer in memory when this returns."""
    data, numbers = _read(path, classes)
    images.add(data.reshape(-1, *SHAPE))
    labels.add(numbers)
    return np.bincount(numbers, minlength=classes)


def _read(path: Path, classes: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Rows of one file and their classes, from 0."""
    if path.suffix == ".npz":
        content: dict[str, Any] = dict(read_npz(path, ("data", "labels"), LARGEST_FILE))
    else:
        opened = files_of_folder(path.parent, [path.name], LARGEST_FILE)
        content = read_dictionary(next(opened))
        opened.close()
    data, labels = content.get("data"), content.get("labels")
    width = int(np.prod(SHAPE))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (width,):
        raise DataError(f"{path}: 'data' is not an array of bytes with {width} columns")
    numbers = _numbers(labels)
    if numbers is None or numbers.shape != (len(data),):
        raise DataError(f"{path}: 'labels' is not a list of {len(data)} integers")
    if not len(numbers) or numbers.min() < 1 or numbers.max() > classes:
        raise DataError(f"{path}: 'labels' must be in 1..{classes}")
    return data, numbers - 1


def _numbers(labels: object) -> npt.NDArray[np.int64] | None:
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu":
        return labels.astype(np.int64)
    if isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels):
        return np.array(labels, np.int64)
    return None
