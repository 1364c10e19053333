"""Are these files still those that were read last time? Sizes and times answer it at once, digests if they must."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmask.errors import DataError

CHUNK = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """Size and time of change of each file, by its path."""

    files: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, paths: Iterable[Path | str]) -> Fingerprint:
        found = {}
        for path in paths:
            try:
                facts = os.stat(path)
            except OSError as error:
                raise DataError(f"{path}: {error.strerror or error}") from None
            found[str(path)] = (facts.st_size, facts.st_mtime_ns)
        return cls(found)

    def digest(self) -> str:
        """A short name for the whole, so that a hundred thousand files are compared by one line."""
        text = json.dumps(sorted((path, *facts) for path, facts in self.files.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_contents(self) -> dict[str, list[Any]]:
        """Size, time and digest of the content of each file."""
        return {path: [*facts, content_digest(path)] for path, facts in self.files.items()}

    def has_contents(self, recorded: object) -> bool:
        """Whether the files hold what was recorded by `with_contents`, whatever their times say."""
        if not isinstance(recorded, dict) or recorded.keys() != self.files.keys():
            return False
        for path, (size, time) in self.files.items():
            then = recorded[path]
            if not isinstance(then, list) or len(then) != 3 or then[0] != size:
                return False
            if then[1] != time and content_digest(path) != then[2]:
                return False
        return True


def content_digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    return digest.hexdigest()


def files_below(folder: Path) -> list[str]:
    """All plain files below a folder in the order of their paths; hidden ones and hidden folders are passed over.

    So are pipes and devices, whose end may never come; a link that leads nowhere is named when it is read.
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
