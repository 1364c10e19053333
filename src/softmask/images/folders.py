"""The layout of a folder of images: a folder for each class, perhaps inside `train`, `val` and `test`."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

from softmask.errors import DataError
from softmask.images.decoding import known_endings
from softmask.storage.fingerprint import files_below

PARTS = ("train", "val", "test")


def is_divided(folder: Path) -> bool:
    """Whether a task's folder holds `train` with the classes in it; trains alone may be a class like any other."""
    return (folder / "train").is_dir() and bool(folders_in(folder / "train"))


def require_parts_only(folder: Path) -> None:
    """Pictures in any other folder beside `train` would be passed over without a word."""
    if strangers := [path.name for path in folders_in(folder) if path.name not in PARTS]:
        raise DataError(f"{folder}: beside 'train' there may be 'val' and 'test', but not {strangers[0]!r}")


def pictures_below(folder: Path) -> list[str]:
    """Files that by their endings are pictures; how many others there are is told."""
    if not folder.is_dir():
        return []
    pictures, others = [], Counter[str]()
    for path in files_below(folder):
        ending = Path(path).suffix.lower()
        if ending in known_endings():
            pictures.append(path)
        else:
            others[ending or "none"] += 1
    if others:
        endings = ", ".join(f"{count} {ending}" for ending, count in others.most_common())
        warnings.warn(f"{folder}: files that are no pictures by their endings are left out: {endings}", stacklevel=2)
    return pictures


def folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
