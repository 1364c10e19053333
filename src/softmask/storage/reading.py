"""Opening untrusted files: regular files, and members of tar.gz and zip archives without unpacking to disk.

A pipe would be waited for and a device never ends: neither is read. An archive may be damaged or hostile: links,
devices and paths that lead out of it are refused, and so is anything that unpacks to more than is expected.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from softmask.errors import DataError

MEBIBYTE = 2**20


def read_plain(path: Path, most: int = 64 * MEBIBYTE) -> bytes:
    """The content of a regular file of at most `most` bytes; anything else is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most // MEBIBYTE} MiB", str(path))
    return content


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`; nesting that is too deep is a ValueError, as any other text that is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


DEEPEST = 32


def is_shallow(value: object) -> bool:
    """Whether lists and dictionaries are nested less deeply than any that we write. Copying deeper ones may fail."""
    level: list[object] = [value]
    for _ in range(DEEPEST):
        inner = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list)))
        level = [each for parts in inner for each in parts]
        if not level:
            return True
    return False


CHUNK = 1 << 20
DAMAGE = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError, RecursionError, MemoryError)
ZIP_DAMAGE = (
    *(zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zlib.error, lzma.LZMAError, MemoryError),
)


class Limited(io.RawIOBase):
    """Passes a stream on, and raises once it has given more than `limit` bytes."""

    def __init__(self, source: IO[bytes], limit: int, where: str) -> None:
        self.source, self.left, self.limit, self.where = source, limit, limit, where

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        try:
            # In chunks, because tarfile holds twice whatever is asked of it at once.
            data = self.source.read(min(len(target), CHUNK))
        except DAMAGE as error:
            raise damaged(self.where, error) from None
        self.left -= len(data)
        if self.left < 0:
            raise DataError(f"{self.where}: unpacks to more than the {self.limit} bytes that are expected at most")
        target[: len(data)] = data
        return len(data)


class _Hashed(Limited):
    """Computes the MD5 of what passes."""

    def __init__(self, source: IO[bytes], limit: int, where: str) -> None:
        super().__init__(source, limit, where)
        self.digest = hashlib.md5(usedforsecurity=False)

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        count = super().readinto(target)
        self.digest.update(target[:count])
        return count


class DataFile:
    """A file open for reading. Use it before asking for the next one: an archive is read in one pass."""

    def __init__(self, name: str, where: str, source: IO[bytes], size: int) -> None:
        self.name, self.size = name, size
        self.where = where
        """Its name in error messages."""
        self._hashed = _Hashed(source, size, where)
        self.stream = io.BufferedReader(self._hashed, CHUNK)

    def md5(self) -> str:
        """Of the whole file; reads the rest of it first."""
        while self.stream.read(CHUNK):
            pass
        return self._hashed.digest.hexdigest()


def damaged(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: damaged or not readable, fetch it again ({error or type(error).__name__})")


def files_of_folder(folder: Path, names: Collection[str], largest: int) -> Generator[DataFile, None, None]:
    """Each of these files; all must exist, and none may be larger than `largest` bytes."""
    for name in names:
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: no such file; {folder} should hold {', '.join(names)}")
        try:
            with path.open("rb") as source:
                size = path.stat().st_size
                _check_size(str(path), size, largest)
                yield DataFile(name, str(path), source, size)
        except OSError as error:
            raise damaged(str(path), error) from None


def members_of_archive(archive: Path, folder: str, names: Collection[str], largest: int) -> Iterator[DataFile]:
    """Each of these files of the folder in a tar.gz archive, in the order in which they are stored there.

    The whole archive is read, so that a second member of the same name cannot hide behind the first.
    """
    wanted = {f"{folder}/{name}": name for name in names}
    found: set[str] = set()
    try:
        with gzip.open(archive) as unpacked, _open_tar(cast(IO[bytes], unpacked), archive, largest * len(names)) as tar:
            for member in tar:
                path = _checked_path(member, archive)
                if path not in wanted:
                    continue
                if path in found:
                    raise DataError(f"{archive}: holds {path} twice")
                found.add(path)
                yield _open_member(tar, member, f"{archive}:{path}", wanted[path], largest)
    except DAMAGE as error:
        raise damaged(str(archive), error) from None
    missing = sorted(wanted.keys() - found)
    if missing:
        raise DataError(f"{archive}: lacks {', '.join(missing)}")


def _open_tar(unpacked: IO[bytes], archive: Path, most: int) -> tarfile.TarFile:
    stream = io.BufferedReader(Limited(unpacked, most, str(archive)), CHUNK)
    return tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK)


def _checked_path(member: tarfile.TarInfo, archive: Path) -> str:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: refused, its member {member.name[:100]!r} leads out of the archive")
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) or member.issparse():
        raise DataError(f"{archive}: refused, its member {member.name[:100]!r} is neither a plain file nor a folder")
    return str(path)


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo, where: str, name: str, largest: int) -> DataFile:
    source = tar.extractfile(member)
    if source is None:
        raise DataError(f"{where}: a folder where a file is expected")
    _check_size(where, member.size, largest)
    return DataFile(name, where, source, member.size)


def _check_size(where: str, size: int, largest: int) -> None:
    if size > largest:
        raise DataError(f"{where}: {size} bytes, but at most {largest} are expected")


class ZipArchive:
    """An archive with checked members: plain files at paths inside it, none larger than `largest` bytes."""

    def __init__(self, path: Path, opened: zipfile.ZipFile, *, largest: int, most_members: int) -> None:
        self.path, self._zip = path, opened
        self._members: dict[str, zipfile.ZipInfo] = {}
        if len(opened.infolist()) > most_members:
            raise DataError(f"{path}: {len(opened.infolist())} members, but at most {most_members} are expected")
        for member in opened.infolist():
            self._check(member, largest)
            if member.is_dir():
                continue
            if member.filename in self._members:
                raise DataError(f"{path}: holds {member.filename[:100]!r} twice")
            self._members[member.filename] = member

    def names(self) -> list[str]:
        return list(self._members)

    def read(self, name: str) -> bytes:
        if name not in self._members:
            raise DataError(f"{self.path}: lacks {name}")
        try:
            # No more is unpacked than the archive's directory says, which has been checked; its checksum is too.
            return self._zip.read(self._members[name])
        except ZIP_DAMAGE as error:
            raise damaged(f"{self.path}:{name}", error) from None

    def _check(self, member: zipfile.ZipInfo, largest: int) -> None:
        name = member.filename
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise DataError(f"{self.path}: refused, its member {name[:100]!r} leads out of the archive")
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise DataError(f"{self.path}: refused, its member {name[:100]!r} is neither a plain file nor a folder")
        if member.file_size > largest:
            raise DataError(f"{self.path}:{name[:100]}: {member.file_size} bytes, but at most {largest} are expected")


@contextmanager
def open_zip(path: Path, *, largest: int, most_members: int) -> Iterator[ZipArchive]:
    try:
        opened = zipfile.ZipFile(path)
    except ZIP_DAMAGE as error:
        raise damaged(str(path), error) from None
    with opened:
        yield ZipArchive(path, opened, largest=largest, most_members=most_members)


def files_below(folder: Path) -> list[str]:
    """All plain files below a folder in the order of their paths, without hidden files and folders.

    Pipes and devices are left out, since they may never end; a broken link is reported when it is read.
    """
    found: list[str] = []
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        waiting.append(entry.path)
                    elif entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path)):
                        found.append(entry.path)
        except OSError as error:
            raise DataError(f"{error.filename}: {error.strerror or error}") from None
    return sorted(found)


# An empty list needs fifty times the memory of its text, so many of them would fill memory from a small file.
CHARACTERS_A_BRACKET, SPARE_BRACKETS = 20, 10_000


def too_many_brackets(text: bytes | str) -> bool:
    """Whether a JSON text has more lists and objects than any honest file of its length."""
    kinds: tuple[Any, ...] = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    return sum(text.count(kind) for kind in kinds) > SPARE_BRACKETS + len(text) // CHARACTERS_A_BRACKET
