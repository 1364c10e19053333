"""Files as the LEAF benchmark writes them: JSON with users, and each user's samples and labels.

There are two shapes of it. LEAF's `iid` sampling gives files of one user each, who pools many people; its `niid`
sampling gives files of many users, who are one person each. Both are read: what matters is who the users are. Two
files may use the same name for different users, so that a user is known by his file and his name.
Source: S. Caldas and others, LEAF: A Benchmark for Federated Settings, 2018.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from softmask.errors import DataError
from softmask.images.labelled import Counts
from softmask.storage.reading import Limited, damaged, too_many_brackets

LARGEST_FILE = 400_000_000  # unpacked; a file of a hundred writers has about 120 million bytes
SMALLEST_SHARE = 40
"""A task must have at least one in this many of the images that it has in the paper."""


class LeafFile(NamedTuple):
    """A training file and the test file that goes with it."""

    train: Path
    test: Path

    @property
    def name(self) -> str:
        return self.train.name.removesuffix(".gz").removesuffix(".json")


class LeafUser(NamedTuple):
    """One user's samples, as stored in the file."""

    name: str
    x: list[Any]
    y: list[Any]


def leaf_files(folder: Path) -> list[LeafFile]:
    """The pairs of files in `train` and `test`, number 2 before number 10; none where there are no such folders."""
    pairs = []
    for train in sorted(_json_files(folder / "train"), key=_natural):
        plain = train.name.removesuffix(".gz").replace("_train_", "_test_")
        found = [path for path in (folder / "test" / plain, folder / "test" / f"{plain}.gz") if path.is_file()]
        if not found:
            raise DataError(f"{folder / 'test' / plain}: no such file (nor packed as .gz), but {train} is there")
        pairs.append(LeafFile(train, found[0]))
    return pairs


def leaf_folder(root: Path, folders: Sequence[str]) -> Path | None:
    """The first of these folders that has both parts."""
    for folder in (root / name for name in folders):
        if _json_files(folder / "train") and _json_files(folder / "test"):
            return folder
    return None


def read_users(path: Path) -> Iterator[LeafUser]:
    """The users of one file in its order."""
    content = _read_json(path)
    users, data = (content.get(key) if isinstance(content, dict) else None for key in ("users", "user_data"))
    if not isinstance(users, list) or not isinstance(data, dict) or not all(isinstance(user, str) for user in users):
        raise DataError(f"{path}: not a file of LEAF: expected a list 'users' and an object 'user_data'")
    if len(set(users)) != len(users):
        raise DataError(f"{path}: 'users' has a name twice")
    for user in users:
        samples = data.get(user)
        x, y = (samples.get(key) if isinstance(samples, dict) else None for key in ("x", "y"))
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise DataError(f"{path}: user {user[:40]!r} has no lists 'x' and 'y' of one length")
        yield LeafUser(user, x, y)


def whole_number(value: object, below: int) -> int | None:
    """A label, which LEAF writes as 3 or as 3.0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < below:
        return None
    return int(value) if value == int(value) else None


def has_enough(train: int, test: int, wanted: Counts) -> bool:
    return train >= wanted.train + wanted.validation and test >= wanted.test


def choose_users(sizes: Sequence[tuple[int, int]], wanted: Counts, tasks: int) -> list[int]:
    """The users that become tasks, given their numbers of training and test samples.

    The first users with enough samples, in the order of the files; if there are too few, those with the most.
    """
    enough = [place for place, size in enumerate(sizes) if has_enough(*size, wanted)]
    if len(enough) >= tasks:
        return enough[:tasks]
    return sorted(sorted(range(len(sizes)), key=lambda place: (-sizes[place][0], place))[:tasks])


def scaled_down(wanted: Counts, train: int, test: int, where: str) -> Counts:
    """The wanted counts, or smaller ones in the same proportion where there are fewer samples."""
    together = wanted.train + wanted.validation
    have = min(train, together)
    validation = wanted.validation * have // together
    counts = Counts(wanted.train * have // together, validation, min(test, wanted.test))
    for part, count, paper in zip(Counts._fields, counts, wanted, strict=True):
        if count * SMALLEST_SHARE < paper or not count:
            least = -(-paper // SMALLEST_SHARE)
            raise DataError(f"{where}: {count} images for {part}; the paper has {paper}, at least {least} are needed")
    return counts


def warn_if_scaled(name: str, place: Path, found: Sequence[Counts], wanted: Counts) -> None:
    """Warns if tasks are smaller than the paper's."""
    if all(counts == wanted for counts in found):
        return
    ranges = []
    for part in zip(*found, strict=True):
        ranges.append(f"{min(part)}" if min(part) == max(part) else f"{min(part)} to {max(part)}")
    warnings.warn(
        f"{name}: {place} has fewer images than the paper: {'/'.join(ranges)} a task for training, validation and "
        f"test instead of {'/'.join(map(str, wanted))}",
        stacklevel=2,
    )


def _json_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")) and path.is_file()]


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _read_json(path: Path) -> object:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as source:
            text = io.BufferedReader(Limited(cast(io.BufferedReader, source), LARGEST_FILE, str(path))).read()
        if too_many_brackets(text):
            raise DataError(f"{path}: refused, it has far more lists than images")
        return json.loads(text, parse_constant=_no_number)
    except DataError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, RecursionError, MemoryError) as error:
        raise damaged(str(path), error) from None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number")
