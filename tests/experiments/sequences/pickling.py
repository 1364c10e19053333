"""Writing pickles as Python 2 wrote them, and hostile ones: Python 3 alone can write neither."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

import numpy as np

from softmask.storage.reading import DataFile


def as_file(content: bytes, where: str = "some/file") -> DataFile:
    return DataFile("file", where, io.BytesIO(content), len(content))


def python2_pickle(value: object) -> bytes:
    """Protocol 2 with texts as byte strings, like the official CIFAR files."""
    return b"\x80\x02" + _written(value) + b"."


def _written(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_written(key) + _written(entry) for key, entry in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_written, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_written, value)) + b"t"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, str):
        return _written(value.encode())
    assert isinstance(value, np.ndarray)
    return array_pickle(value.shape, value.dtype.str[1:].encode(), value.tobytes())


def array_pickle(shape: tuple[int, ...], dtype: bytes, data: bytes) -> bytes:
    """The instructions for an array, which may be false: without PROTO and STOP."""
    new_array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"cnumpy\nndarray\n" + _written((0,)) + _written(b"b")
    new_dtype = b"cnumpy\ndtype\n" + _written((dtype, 0, 1)) + b"R"
    dtype_state = b"(" + _written(3) + _written(b"<") + b"NNN" + _written(-1) + _written(-1) + _written(0) + b"tb"
    state = b"(" + _written(1) + _written(shape) + new_dtype + dtype_state + b"\x89" + _written(data) + b"t"
    return new_array + b"\x87R" + state + b"b"


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def add_member(tar: tarfile.TarFile, name: str, kind: bytes, target: str = "") -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    tar.addfile(member)
