"""Members of a zip archive, read without unpacking anything to disk. Whoever made it may be hostile or mistaken."""

from __future__ import annotations

import lzma
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from softmask.errors import DataError
from softmask.storage.reading import damaged

DAMAGE = (
    *(zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zlib.error, lzma.LZMAError, MemoryError),
)


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
        except DAMAGE as error:
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
    except DAMAGE as error:
        raise damaged(str(path), error) from None
    with opened:
        yield ZipArchive(path, opened, largest=largest, most_members=most_members)
