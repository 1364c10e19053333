"""From image files to arrays of bytes, and the layout of a folder of images: a folder for each class, perhaps inside
`train`, `val` and `test`. No metadata of a file is trusted.
"""

from __future__ import annotations

import importlib
import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from softmask.errors import DataError, Problems, SoftmaskError
from softmask.storage.arrays import ArrayFile
from softmask.storage.lease import opened_if_plain
from softmask.storage.reading import files_below

T = TypeVar("T")
SIDE = 32
LARGEST_FILE = 50_000_000
MOST_PIXELS = 64_000_000  # asked of the header before anything is decoded
REFUSED = {"EPS", "WMF", "IPTC"}
"""Formats that start a program, or contain an image of any other format and size."""
BLOCK = 512


class Kind(NamedTuple):
    """Which images are read, and how."""

    formats: Collection[str]
    turn_upright: bool
    """Whether to apply the orientation in EXIF data. Research datasets are used as stored, as is usual."""


JPEG = Kind(("JPEG",), turn_upright=False)


def decode(content: bytes, where: str, kind: Kind, size: tuple[int, int] = (SIDE, SIDE)) -> npt.NDArray[np.uint8]:
    """An image in colour, resized bicubically: an array of shape (3, height, width)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata; our limit is below its own
            with Image.open(io.BytesIO(content), formats=list(kind.formats)) as image:
                _check_extent(image)
                small = in_colour(image, turn_upright=kind.turn_upright).resize(size[::-1], Image.Resampling.BICUBIC)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except UnidentifiedImageError:
        raise DataError(f"{where}: not an image, damaged, or of a format that is not read") from None
    except Exception as error:  # Pillow's readers of forty formats meet damage with every kind of error
        raise DataError(f"{where}: not an image, or damaged ({_first_line(error)})") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def decode_all(
    names: Iterable[T], read: Callable[[T], tuple[str, bytes]], target: ArrayFile, kind: Kind, problems: Problems
) -> None:
    """Adds each image to the array. `read` returns its name for messages, and its content. Continues after a damaged
    image, so that all of them are reported; the array is then invalid.
    """
    block: list[npt.NDArray[np.uint8]] = []
    for name in names:
        with problems.collected():
            where, content = read(name)
            block.append(decode(content, where, kind))
        if len(block) == BLOCK:
            target.add(np.stack(block))
            block.clear()
    if block:
        target.add(np.stack(block))


def read_image(path: str) -> tuple[str, bytes]:
    """Name and content of a file, which must be a regular one of at most `LARGEST_FILE` bytes."""
    try:
        with open(opened_if_plain(Path(path), os.O_RDONLY, follow_links=True), "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except SoftmaskError as error:  # a pipe or a device
        raise DataError(str(error)) from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: more than {LARGEST_FILE} bytes, too many for one image")
    return path, content


@cache
def any_kind() -> Kind:
    """All formats that Pillow reads without starting another program; HEIC where `pillow-heif` is installed."""
    Image.init()
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()
    return Kind(tuple(name for name in Image.OPEN if name not in REFUSED), turn_upright=True)


@cache
def known_endings() -> frozenset[str]:
    """File name endings of these formats, in lower case."""
    formats = any_kind().formats
    return frozenset(ending for ending, name in Image.registered_extensions().items() if name in formats)


def _check_extent(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise DataError(f"claims {image.width}x{image.height} pixels, more than {MOST_PIXELS}")


def in_colour(image: Image.Image, *, turn_upright: bool = True) -> Image.Image:
    """As RGB, eight bits each; what is transparent is white."""
    if turn_upright:
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise DataError("pixels that are floats may mean anything: convert them to 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits a pixel, which Pillow would cut off at 255 instead of scaling
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise DataError("pixels of more than 16 bits may mean anything: convert them to 8 or 16 bits")
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


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
