"""What the names that numpy writes into a pickle stand for. Nothing of numpy is called that a file could misuse."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

LONGEST_NAME = 200
MOST_DIMENSIONS = 32
NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


class MalformedError(Exception):
    """Why a stream is not read; `pickles.read_dictionary` adds the name of the file."""


class Name(enum.Enum):
    """What the names in a file may stand for."""

    ARRAY_CLASS = enum.auto()
    NEW_ARRAY = enum.auto()
    ARRAY_FROM_BYTES = enum.auto()
    DTYPE = enum.auto()
    SCALAR = enum.auto()
    ENCODE = enum.auto()


_NAMES = {
    "numpy.ndarray": Name.ARRAY_CLASS,
    "numpy.dtype": Name.DTYPE,
    "_codecs.encode": Name.ENCODE,
    **{  # numpy 2 moved its modules
        f"numpy.{core}.{name}": meaning
        for core in ("core", "_core")
        for name, meaning in {
            "multiarray._reconstruct": Name.NEW_ARRAY,
            "multiarray.scalar": Name.SCALAR,
            "numeric._frombuffer": Name.ARRAY_FROM_BYTES,
        }.items()
    },
}


class Unfinished:
    """An array or dtype between its creation and its BUILD instruction, and where the file has noted it meanwhile."""

    def __init__(self, finish: Callable[[Any], object]) -> None:
        self.finish = finish
        self.noted: list[int] = []


def meaning_of(module: object, name: object) -> Name:
    full = f"{_text(module)}.{_text(name)}"
    if full not in _NAMES:
        raise MalformedError(f"it names {full[:LONGEST_NAME]!r}; only numpy arrays and plain containers are read")
    return _NAMES[full]


def _text(value: object) -> str:
    """Not of anything else: a few tuples, each holding the one before twice, would be text without end."""
    if not isinstance(value, (str, bytes)):
        raise MalformedError(f"a {type(value).__name__} where text is expected")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _new_array(kind: object, *_: object) -> Unfinished:
    if kind is not Name.ARRAY_CLASS:
        raise MalformedError("an array of a foreign class")
    return Unfinished(_finish_array)


def _finish_array(state: tuple[Any, ...]) -> np.ndarray:
    _, shape, dtype, column_major, data = state
    return _array(data, dtype, shape, "F" if column_major else "C")


def _array(data: object, dtype: object, shape: object, order: object) -> np.ndarray:
    if not isinstance(dtype, np.dtype) or not isinstance(data, bytes) or not isinstance(shape, tuple):
        raise MalformedError("an array without a finished type, shape or content")
    if len(shape) > MOST_DIMENSIONS or not all(type(length) is int and length >= 0 for length in shape):
        raise MalformedError("an array whose shape is not made of counts")
    if prod(shape) * dtype.itemsize != len(data):
        raise MalformedError(f"an array of shape {str(shape)[:80]} and type {dtype} holds {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if _text(order) == "F" else "C")


def _new_dtype(code: object, *_: object) -> Unfinished:
    name = _text(code)
    if not NUMBERS.fullmatch(name):  # "O" above all: numpy would take Python objects out of such an array
        raise MalformedError(f"an array of type {name[:20]!r}; only numbers are read")

    def finish(state: tuple[Any, ...]) -> np.dtype:
        return np.dtype((">" if _text(state[1]) == ">" else "<") + name)

    return Unfinished(finish)


def _scalar(dtype: object, data: object) -> object:
    return _array(data, dtype, (), "C").item()


def _encode(text: object, encoding: object) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
        raise MalformedError(f"bytes that are not written as latin-1 text but as {_text(encoding)[:20]!r}")
    return text.encode("latin-1")


def size_made(what: Name, arguments: tuple[Any, ...]) -> int:
    """How many bytes a call copies: the file may recall one long text any number of times."""
    return len(arguments[0]) if what is Name.ENCODE and arguments and isinstance(arguments[0], str) else 0


MADE_BY: dict[Name, Callable[..., object]] = {
    Name.NEW_ARRAY: _new_array,
    Name.ARRAY_FROM_BYTES: _array,
    Name.DTYPE: _new_dtype,
    Name.SCALAR: _scalar,
    Name.ENCODE: _encode,
}
