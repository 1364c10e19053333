"""From picture files to arrays of bytes, whatever the files say of themselves."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import cache
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from softmask.errors import DataError, Problems
from softmask.storage.arrays import ArrayFile

T = TypeVar("T")
SIDE = 32
LARGEST_FILE = 50_000_000
MOST_PIXELS = 64_000_000  # asked of the header before anything is decoded
REFUSED = {"EPS", "WMF", "IPTC"}
"""They start a program, or hold a picture of any other kind and size."""
BLOCK = 512


class Kind(NamedTuple):
    """Which pictures are read, and how."""

    formats: Collection[str]
    turn_upright: bool
    """Whether to follow a camera's note on how it was held. Research sets are used as stored, as everybody does."""


JPEG = Kind(("JPEG",), turn_upright=False)


def decode(content: bytes, where: str, kind: Kind, size: tuple[int, int] = (SIDE, SIDE)) -> npt.NDArray[np.uint8]:
    """A picture in colour, brought to a height and width bicubically: an array of shape (3, height, width)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata; our limit is below its own
            with Image.open(io.BytesIO(content), formats=list(kind.formats)) as image:
                _check_extent(image)
                small = in_colour(image, turn_upright=kind.turn_upright).resize(size[::-1], Image.Resampling.BICUBIC)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except UnidentifiedImageError:
        raise DataError(f"{where}: not a whole picture of a kind that is read") from None
    except Exception as error:  # Pillow's readers of forty formats meet damage with every kind of error
        raise DataError(f"{where}: not a whole picture ({_first_line(error)})") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def decode_all(
    names: Iterable[T], read: Callable[[T], tuple[str, bytes]], target: ArrayFile, kind: Kind, problems: Problems
) -> None:
    """Adds each picture to the array. `read` gives what messages call it, and its content.

    Goes on after a damaged one, so that all of them are named; the array is of no use then.
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


def read_picture(path: str) -> tuple[str, bytes]:
    """A file's content and its name for messages; not more of it than a picture may have."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise DataError(f"{path}: more than {LARGEST_FILE} bytes, too many for one picture")
    return path, content


@cache
def any_kind() -> Kind:
    """All that Pillow reads by itself: some formats make it start another program, which no picture is worth."""
    Image.init()
    return Kind(tuple(name for name in Image.OPEN if name not in REFUSED), turn_upright=True)


@cache
def known_endings() -> frozenset[str]:
    """Endings of the names of files of any kind, in small letters."""
    formats = any_kind().formats
    return frozenset(ending for ending, name in Image.registered_extensions().items() if name in formats)


def _check_extent(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise DataError(f"says that it has {image.width}x{image.height} pixels, more than {MOST_PIXELS}")


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
