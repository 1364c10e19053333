"""Arrays from untrusted files: pickles and .npz, read without running code or trusting any size in them.

A pickle may name only what numpy writes, and each of these names stands for a function here that checks its arguments
before anything is allocated. The instructions are scanned first, because the unpickler itself can be misled: by a large
memo index, by a length beyond the file, or by nested tuples that take for ever to hash.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import struct
import tokenize
import zipfile
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from softmask.errors import DataError
from softmask.storage.reading import ZIP_DAMAGE, DataFile, damaged

NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")
MOST_DIMENSIONS = 32
MOST_INSTRUCTIONS = 5_000_000  # about a hundred bytes of memory each; CIFAR-100 has about 300,000
LONGEST_NAME = 200
INSTRUCTIONS = {  # as `pickletools` names them
    *("PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
    *("BINFLOAT", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM"),
    *("SETITEMS", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET"),
    *("LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"),
}
DAMAGE = (
    *(pickle.UnpicklingError, LookupError, TypeError, ValueError, AttributeError, EOFError, struct.error),
    *(OverflowError, MemoryError, RecursionError),
)


class MalformedError(Exception):
    """The reason why a pickle is refused; `read_dictionary` adds the name of the file."""


def read_dictionary(file: DataFile) -> dict[str, Any]:
    """The pickled dictionary in a file, its keys as text. Texts of Python 2 are bytes elsewhere."""
    try:
        content = file.stream.read()
        _scan(content)
        found = _Unpickler(content).load()
        if not isinstance(found, dict):
            raise MalformedError(f"it holds a {type(found).__name__}, not a dictionary")
        return {_text(key): _plain(value) for key, value in found.items()}
    except MalformedError as reason:
        raise DataError(f"{file.where}: refused: {reason}") from None
    except DAMAGE as error:
        message = " ".join(str(error).split())[:200]
        raise DataError(f"{file.where}: refused: a damaged pickle ({message})") from None


def _scan(content: bytes) -> None:
    """Refuses pickles that would crash the unpickler; runs no code. Lengths are checked by `pickletools`."""
    tuples: set[int] = set()
    memo_size, top_is_tuple = 0, False
    for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
        name = opcode.name
        if name not in INSTRUCTIONS:
            raise MalformedError(f"the instruction {name} is not for data")
        if count >= MOST_INSTRUCTIONS:
            raise MalformedError(f"more than {MOST_INSTRUCTIONS} instructions")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            index = memo_size if argument is None else int(argument)
            if index > count:  # the memo is a list: a large index would allocate all that lie below it
                raise MalformedError(f"a memo index of {index} in instruction {count}")
            memo_size += 1
            if top_is_tuple:
                tuples.add(index)
            else:
                tuples.discard(index)
        elif name in ("BINGET", "LONG_BINGET") and argument in tuples:  # a tuple of twice itself, of twice itself ...
            raise MalformedError("one tuple is used twice")
        elif name == "FRAME" and int(argument or 0) > len(content):
            raise MalformedError("a frame beyond the end of the file")
        else:
            top_is_tuple = name in ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")


class _Unpickler(pickle.Unpickler):
    """Knows the names that numpy writes, and no others."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        # Bytes that may still be copied: an honest file holds each of its arrays once, and those that Python 3 writes
        # for Python 2 are copied from text to bytes, and then into the array.
        self.left = 2 * len(content)
        self.functions: dict[str, Callable[..., object]] = {
            "numpy.ndarray": _not_called,
            "numpy.dtype": _Dtype,
            "_codecs.encode": self.encode,
        }
        for core in ("core", "_core"):  # numpy 2 renamed it
            self.functions[f"numpy.{core}.multiarray._reconstruct"] = self.new_array
            self.functions[f"numpy.{core}.multiarray.scalar"] = self.scalar
            self.functions[f"numpy.{core}.numeric._frombuffer"] = self.array

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in self.functions:
            raise MalformedError(f"it names {full[:LONGEST_NAME]!r}; only numpy arrays and plain containers are read")
        return _Function(full, self.functions[full])

    def new_array(self, kind: object, *_: object) -> _Array:
        if not isinstance(kind, _Function) or kind.name != "numpy.ndarray":
            raise MalformedError("an array of a foreign class")
        made = np.ndarray.__new__(_Array, 0)
        made.make = self.array
        return made

    def array(self, data: object, dtype: object, shape: object, order: object) -> _Array:
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray) or not isinstance(shape, tuple):
            raise MalformedError("an array without a type, shape or content")
        if len(shape) > MOST_DIMENSIONS or not all(type(length) is int and length >= 0 for length in shape):
            raise MalformedError("an array with an invalid shape")
        if prod(shape) * dtype.dtype.itemsize != len(data):
            raise MalformedError(f"an array of shape {str(shape)[:80]} and type {dtype.dtype} has {len(data)} bytes")
        self.charge(len(data))
        return np.frombuffer(data, dtype.dtype).reshape(shape, order="F" if _text(order) == "F" else "C").view(_Array)

    def scalar(self, dtype: object, data: object) -> object:
        return self.array(data, dtype, (), "C").item()

    def encode(self, text: object, encoding: object) -> bytes:
        """How Python 3 writes bytes for Python 2."""
        if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
            raise MalformedError("bytes that are not written as latin-1 text")
        self.charge(len(text))
        return text.encode("latin-1")

    def charge(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise MalformedError("it asks for more copies of its arrays than it holds")


class _Function:
    """A function under a name of numpy's. A file can call it, and change nothing about it."""

    __slots__ = ("_call", "name")

    def __init__(self, name: str, call: Callable[..., object]) -> None:
        self.name, self._call = name, call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise MalformedError("a state is set on a function")


class _Dtype:
    """Stands for a numpy dtype, whose own state is never set: numpy shares such objects."""

    __slots__ = ("dtype",)

    def __init__(self, code: object, *_: object) -> None:
        name = _text(code)
        if not NUMBERS.fullmatch(name):  # above all no "O": numpy would take Python objects out of such an array
            raise MalformedError(f"an array of type {name[:20]!r}; only numbers are read")
        self.dtype = np.dtype(f"<{name}")

    def __setstate__(self, state: Any) -> None:
        self.dtype = self.dtype.newbyteorder(">" if _text(state[1]) == ">" else "<")


class _Array(np.ndarray):
    """An array whose state is checked before numpy sees it."""

    make: Callable[..., _Array]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, column_major, data = state
        made = self.make(data, dtype, shape, "F" if column_major else "C")
        super().__setstate__((1, made.shape, made.dtype, bool(column_major), bytes(data)))  # type: ignore[arg-type]
        del self.make  # with it the content of the file would stay in memory


def _not_called(*_: object) -> object:
    raise MalformedError("a class is called")


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, _Array) else value


def _text(value: object) -> str:
    """Of nothing but text: a tuple of twice itself, of twice itself, ... would be text without end."""
    if not isinstance(value, str | bytes | int):
        raise MalformedError(f"a {type(value).__name__} where text is expected")
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


CHUNK = 1 << 24
LONGEST_HEADER = 4096
# A header is the text of a Python dictionary; numpy parses it without running it, and fails in many ways.
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
    except ZIP_DAMAGE as error:
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
