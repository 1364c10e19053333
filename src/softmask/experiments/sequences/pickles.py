"""Reading pickled data without running any of it.

Python's own unpickler calls whatever a file names, and even a short harmless-looking file can make it or numpy allocate
all memory. Here the few instructions that plain containers and numpy arrays need are carried out by hand. A file cannot
call, import or look up anything: the handful of names that numpy writes stand for functions of `pickled_arrays`.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from softmask.errors import DataError
from softmask.experiments.sequences.pickled_arrays import (
    LONGEST_NAME,
    MADE_BY,
    MalformedError,
    Name,
    Unfinished,
    meaning_of,
    size_made,
)
from softmask.storage.reading import DataFile

# Each instruction may cost about a hundred bytes: this bounds memory and time. CIFAR-100 takes about 300,000.
MOST_INSTRUCTIONS = 5_000_000


DAMAGE = (
    *(LookupError, TypeError, ValueError, AttributeError, struct.error),
    *(OverflowError, MemoryError, RecursionError),
)


def read_dictionary(file: DataFile) -> dict[str, Any]:
    """The pickled dictionary in a file, its keys as text. What Python 2 called text is bytes elsewhere."""
    try:
        content = _Machine(file.stream, file.size).run()
        if not isinstance(content, dict):
            raise MalformedError(f"it holds a {type(content).__name__}, not a dictionary")
        return {_key(key): value for key, value in content.items()}
    except MalformedError as reason:
        raise DataError(f"{file.where}: not a data file that can be read: {reason}") from None
    except DAMAGE as error:
        raise DataError(f"{file.where}: not a data file that can be read: a damaged pickle ({error})") from None


def _key(key: object) -> str:
    if not isinstance(key, (str, bytes, int)):
        raise MalformedError(f"a dictionary with a {type(key).__name__} as key")
    return key.decode() if isinstance(key, bytes) else str(key)


class _Machine:
    """The stack and the notes of one file being read."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self.stream, self.left = stream, size
        self.room = size  # for copies: an honest file has each text once
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []
        self.notes: dict[int, Any] = {}  # not a list as in Python's unpickler: a single large index would fill memory

    def run(self) -> object:
        for _ in range(MOST_INSTRUCTIONS):
            code = self.take(1)
            if code == b".":
                return self.stack.pop()
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise MalformedError(_describe(code))
            instruction(self)
        raise MalformedError(f"more than {MOST_INSTRUCTIONS} instructions")

    def take(self, count: int) -> bytes:
        # Compared before reading: a false length must not be allocated.
        if not 0 <= count <= self.left:
            raise MalformedError(f"cut short: {count} more bytes expected, {self.left} left")
        data = self.stream.read(count)
        if len(data) != count:
            raise MalformedError("cut short")
        self.left -= count
        return data

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, layout: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def push(self, value: object) -> None:
        self.stack.append(value)

    def push_number(self, layout: str) -> None:
        self.push(self.number(layout))

    def counted(self, length: str) -> bytes:
        return self.take(self.number(length))

    def push_bytes(self, length: str) -> None:
        self.push(self.counted(length))

    def push_text(self, length: str) -> None:
        self.push(self.counted(length).decode())

    def push_tuple(self, count: int) -> None:
        self.push(tuple(self.last(count)))

    def note(self, index: int) -> None:
        top = self.notes[index] = self.stack[-1]
        if isinstance(top, Unfinished):
            top.noted.append(index)

    def note_at(self, index: str) -> None:
        self.note(self.number(index))

    def recall(self, index: str) -> None:
        self.push(self.notes[self.number(index)])

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        return items

    def mark(self) -> None:
        self.outer.append(self.stack)
        self.stack = []

    def last(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise MalformedError("an instruction lacks its operands")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise MalformedError("items are appended to what is not a list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise MalformedError("entries are stored in what is not a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes | int):  # a nested tuple can take for ever to hash
                raise MalformedError(f"a dictionary key is a {type(key).__name__}, not text or a number")
            target[key] = value

    def name_inline(self) -> None:
        module, name = (self.stream.readline(LONGEST_NAME) for _ in range(2))
        self.left -= len(module) + len(name)
        if not (module.endswith(b"\n") and name.endswith(b"\n")):
            raise MalformedError("cut short in a name")
        self.push(meaning_of(module[:-1].decode(), name[:-1].decode()))

    def name_from_stack(self) -> None:
        self.push(meaning_of(*self.last(2)))

    def call(self) -> None:
        what, arguments = self.last(2)
        if not isinstance(what, Name) or what not in MADE_BY or not isinstance(arguments, tuple):
            raise MalformedError("something is called that cannot be")
        self.room -= size_made(what, arguments)
        if self.room < 0:
            raise MalformedError("it asks for more copies of its texts than it holds")
        self.push(MADE_BY[what](*arguments))

    def build(self) -> None:
        unfinished, state = self.last(2)
        if not isinstance(unfinished, Unfinished):
            raise MalformedError("a state is set on what has none")
        value = unfinished.finish(state)
        self.push(value)
        for index in unfinished.noted:
            self.notes[index] = value


def _describe(code: bytes) -> str:
    names = {known.code.encode("latin-1"): known.name for known in pickletools.opcodes}
    return f"the instruction {names[code]} is not for data" if code in names else "not a pickle"


def _table() -> dict[bytes, Callable[[_Machine], None]]:
    """The instructions by their codes. The comments name them as `pickletools` does."""
    table: dict[bytes, Callable[[_Machine], None]] = {
        b"\x80": lambda machine: machine.skip(1),  # PROTO
        b"\x95": lambda machine: machine.skip(8),  # FRAME
        b"(": _Machine.mark,
        b"]": lambda machine: machine.push([]),
        b"}": lambda machine: machine.push({}),
        b"a": lambda machine: machine.extend(machine.last(1)),  # APPEND
        b"e": lambda machine: machine.extend(machine.since_mark()),  # APPENDS
        b"s": lambda machine: machine.update(machine.last(2)),  # SETITEM
        b"u": lambda machine: machine.update(machine.since_mark()),  # SETITEMS
        b"t": lambda machine: machine.push(tuple(machine.since_mark())),  # TUPLE
        b"\x8a": lambda machine: machine.push(int.from_bytes(machine.counted("<B"), "little", signed=True)),  # LONG1
        b"\x94": lambda machine: machine.note(len(machine.notes)),  # MEMOIZE
        b"c": _Machine.name_inline,  # GLOBAL
        b"\x93": _Machine.name_from_stack,  # STACK_GLOBAL
        b"R": _Machine.call,  # REDUCE
        b"b": _Machine.build,
    }
    for code, value in {b"N": None, b"\x88": True, b"\x89": False, b")": ()}.items():
        table[code] = partial(_Machine.push, value=value)
    for code, layout in {b"K": "<B", b"M": "<H", b"J": "<i", b"G": ">d"}.items():
        table[code] = partial(_Machine.push_number, layout=layout)
    # Texts of Python 2, bytes of Python 3 and (code 0x96) its bytearrays.
    for code, length in {b"U": "<B", b"T": "<i", b"C": "<B", b"B": "<I", b"\x8e": "<Q", b"\x96": "<Q"}.items():
        table[code] = partial(_Machine.push_bytes, length=length)
    for code, length in {b"\x8c": "<B", b"X": "<I", b"\x8d": "<Q"}.items():
        table[code] = partial(_Machine.push_text, length=length)
    for code, index in {b"q": "<B", b"r": "<I"}.items():
        table[code] = partial(_Machine.note_at, index=index)
    for code, index in {b"h": "<B", b"j": "<I"}.items():
        table[code] = partial(_Machine.recall, index=index)
    for code, count in {b"\x85": 1, b"\x86": 2, b"\x87": 3}.items():
        table[code] = partial(_Machine.push_tuple, count=count)
    return table


_INSTRUCTIONS = _table()
