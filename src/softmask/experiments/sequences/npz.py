"""Arrays from an .npz file, read so that a false header can neither run anything nor fill the memory."""

from __future__ import annotations

import io
import tokenize
import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from softmask.errors import DataError
from softmask.experiments.sequences.pickled_arrays import MOST_DIMENSIONS, NUMBERS
from softmask.storage.reading import damaged
from softmask.storage.zipped import DAMAGE

CHUNK = 1 << 24
LONGEST_HEADER = 4096
# A header is the text of a Python dictionary; numpy takes it apart without running it, and fails in many ways.
BROKEN_HEADER = (ValueError, TypeError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)


def read_npz(path: Path, names: tuple[str, ...], largest: int) -> dict[str, npt.NDArray[Any]]:
    """These arrays, none larger than `largest` bytes."""
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                member = archive.getinfo(f"{name}.npy")
                if member.file_size > largest:
                    raise DataError(f"{path}: {name!r} has {member.file_size} bytes, at most {largest} are expected")
                with archive.open(member) as stream:
                    arrays[name] = _read_array(stream, member.file_size, f"{path}: {name!r}")
    except KeyError:
        raise DataError(f"{path}: lacks one of {', '.join(names)}") from None
    except DAMAGE as error:
        raise damaged(str(path), error) from None
    return arrays


def _read_array(stream: IO[bytes], size: int, where: str) -> npt.NDArray[Any]:
    shape, dtype, offset = _read_header(stream, where)
    expected = prod(shape) * dtype.itemsize
    if expected != size - offset:  # compared before anything of that size is allocated
        raise DataError(f"{where} has {size - offset} bytes; shape {str(shape)[:80]} and type {dtype} need {expected}")
    content = np.empty(expected, np.uint8)
    view, filled = memoryview(content.data), 0
    while filled < expected:
        count = stream.readinto(view[filled : filled + CHUNK])  # type: ignore[attr-defined]
        if not count:
            raise DataError(f"{where}: cut short")
        filled += count
    return content.view(dtype).reshape(shape)


def _read_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type of numbers, and where the content begins."""
    start = stream.read(10)
    if len(start) < 10 or start[:6] != b"\x93NUMPY" or start[6] != 1:
        raise DataError(f"{where}: not an array of numpy's format 1")
    length = int.from_bytes(start[8:10], "little")
    if length > LONGEST_HEADER:
        raise DataError(f"{where}: a header of {length} bytes")
    try:
        shape, column_major, dtype = np.lib.format.read_array_header_1_0(
            io.BytesIO(start[8:] + stream.read(length)), max_header_size=LONGEST_HEADER
        )
    except BROKEN_HEADER as error:
        raise DataError(f"{where}: a damaged header ({str(error).splitlines()[0][:100]})") from None
    if not NUMBERS.fullmatch(dtype.str[1:]) or dtype.hasobject or column_major or len(shape) > MOST_DIMENSIONS:
        raise DataError(f"{where}: an array of type {dtype}; only plain numbers are read")
    if any(count < 0 for count in shape):
        raise DataError(f"{where}: an array whose shape is not made of counts")
    return shape, dtype, 10 + length
