"""CelebA by person, smiling or not: FC-10 (ten tasks of two classes) and FC-20 (twenty).

Reads LEAF's JSON (users, their images' file names, and 0.0 or 1.0 for smiling) and the images of CelebA themselves,
which are resized to 3x32x32. A task has 400 images for training, 40 for validation and 80 for the test. A celebrity
has about twenty, so that the paper's counts, too, need users that pool many people: LEAF's `iid` sampling makes them.
Files with one user for each celebrity are read as well, where they have at least a fortieth of these counts.

The JSON files are looked for in the folders `train` and `test` of the data folder itself, of `celeba/fc10` (for FC-20,
`celeba/fc20`), `celeba/data` (where LEAF puts them) and `celeba`, in this order; the images in
`raw/img_align_celeba` beside those two, or up to two folders above.
Source: Z. Liu, P. Luo, X. Wang, X. Tang, Deep Learning Face Attributes in the Wild, 2015; LEAF.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from softmask.errors import DataError, Problems
from softmask.experiments.sequences import Source, sequence
from softmask.experiments.sequences.cache import Facts, cached
from softmask.experiments.sequences.leaf import (
    LeafFile,
    LeafUser,
    choose_users,
    leaf_files,
    leaf_folder,
    read_users,
    scaled_down,
    warn_if_scaled,
    whole_number,
)
from softmask.images.decoding import JPEG, SIDE, decode_all, read_image
from softmask.images.labelled import COLOUR, Counts, LabelledImages, content_id
from softmask.images.splitting import User, split_by_user
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.storage.arrays import ArrayFolder

CLASSES = 2
PER_TASK = Counts(train=400, validation=40, test=80)
IMAGES = Path("raw", "img_align_celeba")
VERSION = 1


def locate(root: Path, tasks: int) -> Path:
    """The folder with `train` and `test` for this number of tasks."""
    found = leaf_folder(root, (".", f"celeba/fc{tasks}", "celeba/data", "celeba"))
    if found is None:
        raise SOURCE.not_in(root, "CelebA by person")
    return found


SOURCE = Source(
    data="LEAF's JSON files in celeba/data or celeba, in the folders train and test, and raw/img_align_celeba/*.jpg",
    home="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    terms="for non-commercial research only; its owners want their agreement read before the images are taken",
    obtain="read the agreement there and take img_align_celeba and list_attr_celeba.txt; then in LEAF's folder "
    "data/celeba (https://github.com/TalwalkarLab/leaf) run `./preprocess.sh -s iid --iu 0.01 --sf 1.0 -k 0 "
    "-t sample` and point --data at LEAF's folder data",
    locate=locate,
)


@sequence(
    "FC-10",
    tasks=10,
    classes=2,
    similar=True,
    description="smiling or not, for ten groups of people, one task for each",
    source=SOURCE,
    drop1=0.325667,
    drop2=0.414662,
)
@sequence(
    "FC-20",
    tasks=20,
    classes=2,
    similar=True,
    description="smiling or not, for twenty groups of people, one task for each",
    source=SOURCE,
    drop1=0.198384,
    drop2=0.269408,
)
def fceleba_by_user(root: Path | None, seeds: Seeds, tasks: int, wanted: Counts = PER_TASK) -> TaskSequence:
    assert root is not None, "a sequence that declares data is not made without a root"
    name, place = f"FC-{tasks}", locate(root, tasks)
    users = read_fceleba(place, tasks, wanted)
    warn_if_scaled(name, place, [user.counts for user in users], wanted)
    return split_by_user(users, name=name, classes=CLASSES, seeds=seeds, normalise=COLOUR)


class Listed(NamedTuple):
    """Which images a user has: file names and labels."""

    user: str
    names: list[str]
    labels: list[int]


def read_fceleba(place: Path, tasks: int, wanted: Counts) -> list[User]:
    """The users that become tasks. The lists are short and read every time; the images come from the cache."""
    files = leaf_files(place)
    listed = {part: _read_lists(files, part) for part in ("train", "test")}
    names = [user.user for user in listed["train"]]
    if names != [user.user for user in listed["test"]]:
        raise DataError(f"{place}: the users in 'train' and 'test' are not the same, in the same order")
    if len(names) < tasks:
        raise DataError(f"{place}: {len(names)} users, but {tasks} tasks need as many")
    pairs = list(zip(listed["train"], listed["test"], strict=True))
    sizes = [(len(train.labels), len(test.labels)) for train, test in pairs]
    chosen = [pairs[position] for position in choose_users(sizes, wanted, tasks)]
    counts = _checked_counts(chosen, wanted, place)
    parts = _decoded(place, tasks, chosen)
    return [
        User(train.user, *samples, of_user) for (train, _), samples, of_user in zip(chosen, parts, counts, strict=True)
    ]


def _checked_counts(chosen: Sequence[tuple[Listed, Listed]], wanted: Counts, place: Path) -> list[Counts]:
    problems, counts = Problems(), []
    for train, test in chosen:
        with problems.collected():
            where = f"{place}: user {train.user}"
            counts.append(scaled_down(wanted, len(train.labels), len(test.labels), where))
    problems.raise_any()
    return counts


def _decoded(
    place: Path, tasks: int, chosen: Sequence[tuple[Listed, Listed]]
) -> list[tuple[LabelledImages, LabelledImages]]:
    """Training and test images of each user."""
    folder = _image_folder(place)
    parts = dict(zip(("train", "test"), zip(*chosen, strict=True), strict=True))
    paths = {part: [str(folder / name) for user in users for name in user.names] for part, users in parts.items()}

    def build(output: ArrayFolder) -> Facts:
        problems = Problems()
        for part, of_part in paths.items():
            images = output.array(f"{part}_images", (3, SIDE, SIDE), np.uint8)
            decode_all(of_part, read_image, images, JPEG, problems)
        problems.raise_any()
        return {}

    # The lists too: they decide which image stands in which row.
    lists = [str(path) for file in leaf_files(place) for path in file]
    sources = [*lists, *sorted({path for of_part in paths.values() for path in of_part})]
    stored = cached(f"fceleba{tasks}", VERSION, place, sources, build)
    cut: list[list[LabelledImages]] = []
    for part, users in parts.items():
        first, of_part = 0, []
        for user in users:
            images = stored.arrays[f"{part}_images"][first : first + len(user.labels)]
            # From the name, not the pixels: decoders of JPEG differ in the last bit.
            ids = [content_id(f"{name} {label}".encode()) for name, label in zip(user.names, user.labels, strict=True)]
            of_part.append(LabelledImages(images, np.array(user.labels, np.int64), np.array(ids, np.int64)))
            first += len(user.labels)
        cut.append(of_part)
    return list(zip(*cut, strict=True))


def _image_folder(place: Path) -> Path:
    above = place.absolute()
    for folder in (above, above.parent, above.parent.parent):
        for inside in (IMAGES, Path("data") / IMAGES):
            if (folder / inside).is_dir():
                return folder / inside
    raise DataError(f"{place / IMAGES}: no such folder, nor is it found above; the images of CelebA belong there")


def _read_lists(files: Sequence[LeafFile], part: str) -> list[Listed]:
    problems, found = Problems(), []
    for file in files:
        path = file.train if part == "train" else file.test
        with problems.collected():
            users = list(read_users(path))
            for user in users:
                found.append(
                    _listed(user, path, f"people of {file.name}" if len(users) == 1 else f"person {user.name}")
                )
    problems.raise_any()
    return found


def _listed(user: LeafUser, path: Path, full_name: str) -> Listed:
    where = f"{path}: user {user.name[:40]!r}"
    labels = [whole_number(label, CLASSES) for label in user.y]
    for name in user.x:
        # A name, not a path: a list must not choose which files of this machine are opened.
        if (
            not isinstance(name, str)
            or PurePath(name).name != name
            or "\\" in name
            or not name.endswith(".jpg")
            or not name.isprintable()
        ):
            raise DataError(f"{where} has an image that is not the name of a .jpg file: {str(name)[:80]!r}")
    if None in labels:
        raise DataError(f"{where} has a label that is neither 0 nor 1")
    return Listed(full_name, user.x, [label for label in labels if label is not None])
