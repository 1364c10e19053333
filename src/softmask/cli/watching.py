"""`softmask predict --watch`: classifies images as they arrive in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from softmask.errors import DataError
from softmask.images.decoding import images_below

SECONDS_BETWEEN_LOOKS = 0.5
Mark = tuple[int, int]
"""Size and time of change of a file."""


def arrivals(folder: Path, sleep: Callable[[float], object] = time.sleep) -> Iterator[list[str]]:
    """Yields the images of a folder, then, endlessly, those that arrive or change; an empty list if there are none.

    A file counts as complete when it did not change between two looks.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    before: dict[str, Mark] = {}
    answered: dict[str, Mark] = {}
    while True:
        now = _marks(folder)
        complete = [path for path, mark in now.items() if before.get(path) == mark != answered.get(path)]
        answered = {path: mark for path, mark in answered.items() if path in now} | {p: now[p] for p in complete}
        before = now
        yield complete
        sleep(SECONDS_BETWEEN_LOOKS)


def _marks(folder: Path) -> dict[str, Mark]:
    found = {}
    for path in images_below(folder):
        try:
            facts = os.stat(path)
        except OSError:  # gone since
            continue
        found[path] = (facts.st_size, facts.st_mtime_ns)
    return found
