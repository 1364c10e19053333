"""FEMNIST: handwriting in 62 classes (0-9, A-Z, a-z), one task for each user: FE-10 (ten tasks) and FE-20 (twenty).

Reads LEAF's JSON, plain or packed with gzip. A task has 3,100 images for training, 310 for validation and 620 for the
test. No single writer has so many: as in the paper's experiments, LEAF's `iid` sampling has to pool writers into users,
one file each, and task k is file k. (The authors' own reader opens file 0 for all tasks.) Files with one user for each
real writer are read as well, and give tasks as small as these writers' work; below a fortieth they are refused.

Of the folders with `train` and `test` in them, the first of these is used: the data folder itself, `femnist/fe10` (for
FE-20, `femnist/fe20`), `femnist/data` (where LEAF puts them), `femnist`, `femnist/writers20`.
Ink is dark on white, 1x28x28. The normalisation is that of MNIST, which is white on black: so do the paper's authors.
Source: LEAF, from NIST Special Database 19 (P. Grother, K. Hanaoka).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softmask.errors import DataError, Problems
from softmask.experiments.sequences import Source, sequence
from softmask.experiments.sequences.cache import Facts, Stored, cached
from softmask.experiments.sequences.leaf import (
    LeafFile,
    LeafUser,
    choose_users,
    has_enough,
    leaf_files,
    leaf_folder,
    read_users,
    scaled_down,
    warn_if_scaled,
    whole_number,
)
from softmask.images.labelled import Counts, LabelledImages, content_id
from softmask.images.splitting import User, split_by_user
from softmask.learning.seeds import Seeds
from softmask.learning.task import Normalisation, TaskSequence
from softmask.storage.arrays import ArrayFile, ArrayFolder

CLASSES, SIDE = 62, 28
PER_TASK = Counts(train=3100, validation=310, test=620)
NORMALISE = Normalisation(mean=(0.1307,), std=(0.3081,))
VERSION = 1


def locate(root: Path, tasks: int) -> Path:
    """The folder with `train` and `test` for this number of tasks."""
    found = leaf_folder(root, (".", f"femnist/fe{tasks}", "femnist/data", "femnist", "femnist/writers20"))
    if found is None:
        raise SOURCE.not_in(root, "FEMNIST")
    return found


SOURCE = Source(
    data="LEAF's JSON files in femnist/fe10 or fe20, femnist/data or femnist, each with the folders train and test",
    home="https://github.com/TalwalkarLab/leaf",
    terms="NIST Special Database 19: free to use, NIST asks to be named (https://www.nist.gov/open/license)",
    obtain="there is no file to fetch: LEAF's script makes it; in its folder data/femnist run "
    "`./preprocess.sh -s iid --iu 0.01 --sf 1.0 -k 0 -t sample`, then point --data at LEAF's folder data",
    locate=locate,
)


@sequence(
    "FE-10",
    tasks=10,
    classes=62,
    similar=True,
    description="handwriting of ten groups of people, one task for each",
    source=SOURCE,
    drop1=0.492179,
    drop2=0.484742,
)
@sequence(
    "FE-20",
    tasks=20,
    classes=62,
    similar=True,
    description="handwriting of twenty groups of people, one task for each",
    source=SOURCE,
    drop1=0.297455,
    drop2=0.388678,
)
def femnist_by_user(root: Path | None, seeds: Seeds, tasks: int, wanted: Counts = PER_TASK) -> TaskSequence:
    assert root is not None, "a sequence that declares data is not made without a root"
    name, place = f"FE-{tasks}", locate(root, tasks)
    users = read_femnist(place, tasks, wanted)
    warn_if_scaled(name, place, [user.counts for user in users], wanted)
    return split_by_user(users, name=name, classes=CLASSES, seeds=seeds, normalise=NORMALISE)


def read_femnist(place: Path, tasks: int, wanted: Counts) -> list[User]:
    """The users that become tasks, in the order of the files."""
    files = leaf_files(place)

    def build(output: ArrayFolder) -> Facts:
        return _build(output, files, tasks, wanted)

    stored = cached(f"femnist{tasks}", VERSION, place, [path for file in files for path in file], build)
    names, train, test = (stored.facts[key] for key in ("users", "train", "test"))
    if len(names) < tasks:
        raise DataError(f"{place}: {len(names)} users, but {tasks} tasks need as many")
    starts = {part: np.cumsum([0, *stored.facts[part]]).tolist() for part in ("train", "test")}
    problems, chosen = Problems(), []
    for place_of_user in choose_users(list(zip(train, test, strict=True)), wanted, tasks):
        name = names[place_of_user]
        first, last = place_of_user, place_of_user + 2
        samples = {part: _samples(stored, part, rows[first:last]) for part, rows in starts.items()}
        with problems.collected():
            counts = scaled_down(wanted, train[place_of_user], test[place_of_user], f"{place}: user {name}")
            chosen.append(User(name, samples["train"], samples["test"], counts))
    problems.raise_any()
    return chosen


def _samples(stored: Stored, part: str, rows: list[int]) -> LabelledImages:
    images, labels, ids = (stored.arrays[f"{part}_{kind}"] for kind in ("images", "labels", "ids"))
    return LabelledImages(
        images[rows[0] : rows[1]], np.array(labels[rows[0] : rows[1]]), np.array(ids[rows[0] : rows[1]])
    )


def _build(output: ArrayFolder, files: list[LeafFile], tasks: int, wanted: Counts) -> Facts:
    """Users one after the other; the facts contain their names and numbers of samples. Files are read until there are
    enough tasks: LEAF writes 36 of them, and each takes seconds.
    """
    facts: dict[str, list[Any]] = {"users": [], "train": [], "test": []}
    arrays = {
        part: {
            "images": output.array(f"{part}_images", (1, SIDE, SIDE), np.uint8),
            "labels": output.array(f"{part}_labels", (), np.int64),
            "ids": output.array(f"{part}_ids", (), np.int64),
        }
        for part in ("train", "test")
    }
    problems = Problems()
    for file in files:
        with problems.collected():
            _add_file(file, arrays, facts)
        sizes = zip(facts["train"], facts["test"], strict=False)  # a damaged file may have left one without the other
        if sum(has_enough(*size, wanted) for size in sizes) >= tasks:
            break
    problems.raise_any()
    return facts


def _add_file(file: LeafFile, arrays: dict[str, dict[str, ArrayFile]], facts: dict[str, list[Any]]) -> None:
    users: dict[str, list[str]] = {"train": [], "test": []}
    for part, path in zip(users, file, strict=True):
        for user in read_users(path):
            for kind, block in _decoded(user, path).items():
                arrays[part][kind].add(block)
            users[part].append(user.name)
            facts[part].append(len(user.y))
    if users["train"] != users["test"]:
        raise DataError(f"{file.test}: its users are not those of {file.train}, in the same order")
    facts["users"] += [_full_name(file, user, alone=len(users["train"]) == 1) for user in users["train"]]


def _full_name(file: LeafFile, user: str, *, alone: bool) -> str:
    """In files of one user each, all users may have the same name."""
    return f"writers of {file.name}" if alone else f"writer {user}"


def _decoded(user: LeafUser, path: Path) -> dict[str, npt.NDArray[Any]]:
    where = f"{path}: user {user.name[:40]!r}"
    labels = [whole_number(label, CLASSES) for label in user.y]
    if None in labels:
        raise DataError(f"{where} has a label that is not one of 0..{CLASSES - 1}")
    try:
        values = np.array(user.x) if labels else np.zeros((0, SIDE * SIDE))
    except (ValueError, TypeError, OverflowError):  # lists of several lengths
        values = np.empty(0)
    right = values.dtype.kind in "iuf" and values.shape == (len(labels), SIDE * SIDE)
    if not right or not ((values >= 0) & (values <= 1)).all():
        raise DataError(f"{where} has an image that is not a list of {SIDE * SIDE} numbers in 0..1")
    images = np.rint(values * 255).astype(np.uint8)
    ids = [content_id(bytes([label or 0]) + image.tobytes()) for image, label in zip(images, labels, strict=True)]
    return {
        "images": images.reshape(-1, 1, SIDE, SIDE),
        "labels": np.array(labels, np.int64),
        "ids": np.array(ids, np.int64),
    }
