"""The layout of a folder of images: a folder for each class, perhaps inside `train`, `val` and `test`."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

from softmask.errors import DataError
from softmask.images.decoding import known_endings
from softmask.storage.reading import files_below

PARTS = ("train", "val", "test")
_RAW = "convert raw photographs to JPEG or PNG"
NEEDS = dict.fromkeys((".heic", ".heif", ".hif"), "HEIC needs `pip install pillow-heif`, or convert to JPEG")
NEEDS |= {
    ".avif": "AVIF needs Pillow 11.3 or newer",
    ".svg": "convert drawings (SVG) to PNG",
    ".pdf": "convert PDF to PNG",
}
NEEDS |= dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2"), _RAW)


def is_divided(folder: Path) -> bool:
    """Whether the folder of a task has a folder `train` of class folders; without those, `train` is a class itself."""
    return (folder / "train").is_dir() and bool(folders_in(folder / "train"))


def require_parts_only(folder: Path) -> None:
    """Raises if there are other folders beside `train`, whose images would be ignored."""
    if others := [path.name for path in folders_in(folder) if path.name not in PARTS]:
        raise DataError(f"{folder}: beside 'train' there may be 'val' and 'test', but not {others[0]!r}")


def images_below(folder: Path) -> list[str]:
    """Files with the ending of an image format; a warning counts the others."""
    if not folder.is_dir():
        return []
    files = files_below(folder)
    images = [path for path in files if Path(path).suffix.lower() in known_endings()]
    if images and len(images) < len(files):
        warnings.warn(f"{folder}: files of other formats are ignored: {_other_endings(files)}", stacklevel=2)
    return images


def no_images(folder: Path) -> DataError:
    """The error for a folder without images: which files there are, and what their formats need."""
    files = files_below(folder) if folder.is_dir() else []
    if not files:
        return DataError(f"{folder}: no images")
    endings = {Path(path).suffix.lower() for path in files}
    advice = sorted({NEEDS[ending] for ending in endings if ending in NEEDS}) or ["convert them to JPEG or PNG"]
    return DataError(f"{folder}: no images in a format that is read, but {_other_endings(files)}: {'; '.join(advice)}")


def _other_endings(files: list[str]) -> str:
    endings = Counter(Path(path).suffix.lower() or "without an ending" for path in files)
    return ", ".join(f"{count} {end}" for end, count in endings.most_common() if end not in known_endings())


def folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
