"""CIFAR-100: colour images of 32x32 pixels in 100 classes, cut by class into C-10 (ten tasks) and C-20 (twenty).

Each class has 450 images for training, 50 for validation and 100 for the test. C-10-GPM is cut as the papers of GPM,
SGP and TRGP do it. Reads the official archive `cifar-100-python.tar.gz`, packed or unpacked.
Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softmask.errors import DataError
from softmask.experiments.sequences import Download, Source, sequence
from softmask.experiments.sequences.array_files import read_dictionary
from softmask.experiments.sequences.cache import Facts, cached
from softmask.images.labelled import COLOUR, Counts, LabelledImages
from softmask.images.splitting import split_by_class, split_in_order
from softmask.learning.seeds import Seeds
from softmask.learning.task import Normalisation, TaskSequence
from softmask.storage.arrays import ArrayFolder
from softmask.storage.reading import DataFile, files_of_folder, members_of_archive

FOLDER, ARCHIVE = "cifar-100-python", "cifar-100-python.tar.gz"
OFFICIAL_MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}
LARGEST_FILE = 200_000_000  # the official `train` has 155 million bytes
CLASSES, SHAPE = 100, (3, 32, 32)
PER_CLASS = Counts(train=450, validation=50, test=100)
VERSION = 1

# From dataloader/cifar100.py and main_cifar100.py of github.com/sahagobinda/GPM: 5 % of a task's images for validation,
# and the mean and deviation of each colour.
GPM_VALIDATION = 0.05
GPM_COLOUR = Normalisation(
    mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
    std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
)


def locate(root: Path, tasks: int) -> Path:
    """The folder or the archive."""
    for folder in (root / FOLDER, root):
        if folder.is_dir() and (folder.name == FOLDER or (folder / "train").is_file()):
            return folder
    archive = root / ARCHIVE if root.is_dir() else root
    if archive.is_file():
        return archive
    raise SOURCE.not_in(root, "CIFAR-100")


SOURCE = Source(
    data=f"{ARCHIVE} or the folder {FOLDER}",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    terms="no licence is stated; its authors ask that their technical report be cited",
    download=Download(
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        ARCHIVE,
        "eb9058c3a382ffc7106e4002c42a8d85",
        169_001_437,
    ),
    locate=locate,
)


@sequence(
    "C-10",
    tasks=10,
    classes=10,
    description="CIFAR-100 by class: ten tasks of ten classes",
    source=SOURCE,
    drop1=0.313456,
    drop2=0.409306,
)
@sequence(
    "C-20",
    tasks=20,
    classes=5,
    description="CIFAR-100 by class: twenty tasks of five classes",
    source=SOURCE,
    drop1=0.495630,
    drop2=0.485032,
)
def cifar100_by_class(root: Path | None, seeds: Seeds, tasks: int, per_class: Counts = PER_CLASS) -> TaskSequence:
    assert root is not None, "a sequence that declares data is not made without a root"
    train, test, class_names = read_cifar100(locate(root, tasks), per_class)
    return split_by_class(
        train,
        test,
        name=f"C-{tasks}",
        tasks=tasks,
        validation=per_class.validation,
        seeds=seeds,
        normalise=COLOUR,
        class_names=class_names,
    )


@sequence(
    "C-10-GPM",
    tasks=10,
    classes=10,
    description="CIFAR-100 as GPM's authors cut it: classes in their order, 5 % for validation, batch normalisation",
    source=SOURCE,
    norm="batch",
)
def cifar100_in_order(root: Path | None, seeds: Seeds, tasks: int, per_class: Counts = PER_CLASS) -> TaskSequence:
    """The order of classes is the same for every seed."""
    assert root is not None, "a sequence that declares data is not made without a root"
    train, test, class_names = read_cifar100(locate(root, tasks), per_class)
    return split_in_order(
        train,
        test,
        name="C-10-GPM",
        tasks=tasks,
        validation=GPM_VALIDATION,
        seeds=seeds,
        normalise=GPM_COLOUR,
        class_names=class_names,
    )


def read_cifar100(place: Path, per_class: Counts) -> tuple[LabelledImages, LabelledImages, list[str]]:
    """Training images (those for validation among them), test images, and the names of the classes."""

    def build(output: ArrayFolder) -> Facts:
        return _build(place, output, per_class)

    sources = [place] if place.is_file() else [place / name for name in OFFICIAL_MD5]
    stored = cached("cifar100", VERSION, place, sources, build)
    if notices := stored.facts["notices"]:
        warnings.warn("; ".join(notices), stacklevel=2)
    parts = []
    for part in ("train", "test"):
        images, labels, ids = (stored.arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
        parts.append(LabelledImages(images, np.array(labels), np.array(ids)))
    return parts[0], parts[1], stored.facts["class_names"]


def _build(place: Path, output: ArrayFolder, per_class: Counts) -> Facts:
    expected = {"train": per_class.train + per_class.validation, "test": per_class.test}
    class_names: list[str] = []
    notices = []
    for file in _open(place):
        content = read_dictionary(file)
        if file.name == "meta":
            class_names = _class_names(content, file.where)
        else:
            samples = _samples(content, file.where, expected[file.name])
            output.put(f"{file.name}_images", samples.images)
            output.put(f"{file.name}_labels", samples.labels)
            output.put(f"{file.name}_ids", samples.ids)
        md5 = file.md5()
        if md5 != OFFICIAL_MD5[file.name]:
            # Not an error: repacked copies with the same images are common, and what matters has been checked.
            notices.append(f"{file.where}: not the official file (its MD5 is {md5}); used as it is")
    return {"class_names": class_names, "notices": notices}


def _open(place: Path) -> Iterator[DataFile]:
    """The files train, test and meta."""
    if place.is_dir():
        return files_of_folder(place, OFFICIAL_MD5, LARGEST_FILE)
    return members_of_archive(place, FOLDER, OFFICIAL_MD5, LARGEST_FILE)


def _samples(content: dict[str, Any], where: str, per_class: int) -> LabelledImages:
    count = CLASSES * per_class
    data, labels, names = (content.get(key) for key in ("data", "fine_labels", "filenames"))
    size = int(np.prod(SHAPE))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape != (count, size):
        raise DataError(f"{where}: 'data' is {_kind(data)}, expected an array of shape ({count}, {size}), type uint8")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise DataError(f"{where}: 'fine_labels' is {_kind(labels)}, expected a list of labels below {CLASSES}")
    if len(labels) != count or set(Counter(labels).values()) != {per_class}:
        raise DataError(f"{where}: 'fine_labels' must name each of the {CLASSES} classes {per_class} times")
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"{where}: 'filenames' is {_kind(names)}, expected a list of {count} names")
    ids = _ids([_text(name) for name in names], data)
    return LabelledImages(data.reshape(count, *SHAPE), np.array(labels, np.int64), np.array(ids, np.int64))


def _ids(names: Sequence[str], data: np.ndarray) -> list[int]:
    """Each image's rank by file name, so that a repacked archive with its rows in another order gives the same tasks.

    One file name occurs twice in each official file: there the pixels decide.
    """
    times = Counter(names)
    keys = [(name, data[row].tobytes() if times[name] > 1 else b"") for row, name in enumerate(names)]
    ids = [0] * len(names)
    for rank, row in enumerate(sorted(range(len(names)), key=keys.__getitem__)):
        ids[row] = rank
    return ids


def _class_names(content: dict[str, Any], where: str) -> list[str]:
    names = content.get("fine_label_names")
    if not isinstance(names, list) or len(names) != CLASSES or not all(isinstance(name, bytes | str) for name in names):
        raise DataError(f"{where}: 'fine_label_names' is {_kind(names)}, expected a list of {CLASSES} names")
    return [_text(name) for name in names]


def _text(name: bytes | str) -> str:
    return name.decode("latin-1") if isinstance(name, bytes) else name


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}, type {value.dtype}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "missing" if value is None else f"a {type(value).__name__}"
