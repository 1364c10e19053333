"""TinyImageNet: colour images in 200 classes, cut by class into T-10 (ten tasks) and T-20 (twenty).

Each class has 450 images for training, 50 for validation and 50 for the test: the labelled part that is called `val`
in the archive, since the one called `test` has no labels. Images of 64x64 pixels, some of them grey, are resized to
3x32x32. Reads `tiny-imagenet-200.zip` or the folder that is in it.
Source: Y. Le and X. Yang, Tiny ImageNet Visual Recognition Challenge, Stanford CS 231N, 2015.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from softmask.errors import DataError, Problems
from softmask.experiments.sequences import Download, Source, sequence
from softmask.experiments.sequences.cache import Facts, cached
from softmask.images.decoding import JPEG, SIDE, decode_all, read_image
from softmask.images.labelled import COLOUR, Counts, LabelledImages
from softmask.images.splitting import split_by_class
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.storage.arrays import ArrayFolder
from softmask.storage.reading import files_below, open_zip

FOLDER, ARCHIVE = "tiny-imagenet-200", "tiny-imagenet-200.zip"
CLASSES, PER_CLASS = 200, Counts(train=450, validation=50, test=50)
LARGEST_FILE, MOST_MEMBERS = 10_000_000, 130_000  # the official archive has about 120,600 members
TEST_LABELS = "val/val_annotations.txt"
VERSION = 1


def locate(root: Path, tasks: int) -> Path:
    """The folder or the archive."""
    for place in (root / FOLDER, root, root / ARCHIVE):
        if (place / "wnids.txt").is_file() or (place.name == ARCHIVE and place.is_file()):
            return place
    raise SOURCE.not_in(root, "TinyImageNet")


SOURCE = Source(
    data=f"{ARCHIVE} or the folder {FOLDER}",
    home="https://cs231n.stanford.edu",
    terms="for research and teaching only, like ImageNet, from which it is taken (https://image-net.org/download)",
    download=Download(
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip", ARCHIVE, "90528d7ca1a48142e341f4ef8d21d0de", 248_100_043
    ),
    locate=locate,
)


@sequence(
    "T-10",
    tasks=10,
    classes=20,
    description="TinyImageNet by class: ten tasks of twenty classes",
    source=SOURCE,
    drop1=0.124933,
    drop2=0.434409,
)
@sequence(
    "T-20",
    tasks=20,
    classes=10,
    description="TinyImageNet by class: twenty tasks of ten classes",
    source=SOURCE,
    drop1=0.387491,
    drop2=0.442297,
)
def tinyimagenet_by_class(
    root: Path | None, seeds: Seeds, tasks: int, classes: int = CLASSES, per_class: Counts = PER_CLASS
) -> TaskSequence:
    assert root is not None, "a sequence that declares data is not made without a root"
    train, test, class_names = read_tinyimagenet(locate(root, tasks), classes, per_class)
    return split_by_class(
        train,
        test,
        name=f"T-{tasks}",
        tasks=tasks,
        validation=per_class.validation,
        seeds=seeds,
        normalise=COLOUR,
        class_names=class_names,
    )


def read_tinyimagenet(place: Path, classes: int, per_class: Counts) -> tuple[LabelledImages, LabelledImages, list[str]]:
    """Training images (those for validation among them), test images, and the names of the classes."""
    sources = [str(place)] if place.is_file() else _needed_files(place)

    def build(output: ArrayFolder) -> Facts:
        with _opened(place) as files:
            return _build(files, output, classes, per_class)

    stored = cached("tinyimagenet", VERSION, place, sources, build)
    parts = []
    for part in ("train", "test"):
        labels = np.array(stored.arrays[f"{part}_labels"])
        parts.append(LabelledImages(stored.arrays[f"{part}_images"], labels, np.arange(len(labels))))
    return parts[0], parts[1], stored.facts["class_names"]


class _Files(NamedTuple):
    """The dataset, packed or not; names are paths below its folder."""

    place: str
    names: Sequence[str]
    content: Callable[[str], bytes]

    def read(self, name: str) -> tuple[str, bytes]:
        """The name of the file in messages, and its content."""
        return f"{self.place}{name}", self.content(name)

    def lines(self, name: str) -> list[str]:
        try:
            return self.content(name).decode().splitlines()
        except UnicodeDecodeError:
            raise DataError(f"{self.place}{name}: not text") from None


def _needed_files(folder: Path) -> list[str]:
    """All files but those of `test`, a tenth of the set, which has no labels."""
    lists = [str(folder / name) for name in ("wnids.txt", "words.txt") if (folder / name).is_file()]
    return [*lists, *(path for part in ("train", "val") for path in files_below(folder / part))]


@contextmanager
def _opened(place: Path) -> Iterator[_Files]:
    if place.is_dir():
        names = [Path(path).relative_to(place).as_posix() for path in _needed_files(place)]
        yield _Files(f"{place}/", names, lambda name: read_image(str(place / name))[1])
        return
    with open_zip(place, largest=LARGEST_FILE, most_members=MOST_MEMBERS) as archive:
        prefix = f"{FOLDER}/"
        names = [name.removeprefix(prefix) for name in archive.names() if name.startswith(prefix)]
        yield _Files(f"{place}:{prefix}", names, lambda name: archive.read(prefix + name))


def _build(files: _Files, output: ArrayFolder, classes: int, per_class: Counts) -> Facts:
    keys = sorted(files.lines("wnids.txt"))
    if len(set(keys)) != classes or len(keys) != classes:
        raise DataError(f"{files.place}wnids.txt: names {len(set(keys))} classes, expected {classes}")
    label = {key: position for position, key in enumerate(keys)}
    parts = {"train": _trained(files, label), "test": _tested(files, label)}
    problems = Problems()
    with problems.collected():
        _check_counts(f"{files.place}train", parts["train"], keys, per_class.train + per_class.validation)
    with problems.collected():
        _check_counts(f"{files.place}{TEST_LABELS}", parts["test"], keys, per_class.test)
    problems.raise_any()
    for part, samples in parts.items():
        images = output.array(f"{part}_images", (3, SIDE, SIDE), np.uint8)
        decode_all((name for name, _ in samples), files.read, images, JPEG, problems)
        output.put(f"{part}_labels", np.array([position for _, position in samples], np.int64))
    problems.raise_any()
    return {"class_names": _class_names(files, keys)}


Labelled = list[tuple[str, int]]
"""Names of images and the positions of their classes, in the order of the names."""


def _trained(files: _Files, label: dict[str, int]) -> Labelled:
    found = []
    for name in sorted(files.names):
        part, _, rest = name.partition("/")
        if part == "train" and name.endswith(".JPEG") and rest.partition("/")[0] in label:
            found.append((name, label[rest.partition("/")[0]]))
    return found


def _tested(files: _Files, label: dict[str, int]) -> Labelled:
    found = {}
    for line in files.lines(TEST_LABELS):
        name, key = (*line.split("\t"), "", "")[:2]
        if key not in label or "/" in name or name in found:
            raise DataError(f"{files.place}{TEST_LABELS}: a line that names no new image and class: {line[:80]!r}")
        found[name] = label[key]
    return [(f"val/images/{name}", found[name]) for name in sorted(found)]


def _check_counts(where: str, samples: Labelled, keys: Sequence[str], count: int) -> None:
    found = Counter(position for _, position in samples)
    wrong = [f"{key} has {found[position]}" for position, key in enumerate(keys) if found[position] != count]
    if wrong:
        more = f" (and {len(wrong) - 1} more classes are wrong)" if len(wrong) > 1 else ""
        raise DataError(f"{where}: each class needs {count} images, but {wrong[0]}{more}")


def _class_names(files: _Files, keys: Sequence[str]) -> list[str]:
    """The first word for each class. Without the list of words, or where two share their word, the key itself."""
    lines = files.lines("words.txt") if "words.txt" in files.names else []
    words = dict(line.split("\t", 1) for line in lines if "\t" in line)
    names = [words.get(key, key).split(",")[0] for key in keys]
    times = Counter(names)
    return [name if times[name] == 1 else key for name, key in zip(names, keys, strict=True)]
