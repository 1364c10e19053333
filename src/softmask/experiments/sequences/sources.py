"""Where a data set comes from, what is looked for on disk, and on what terms its owners give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from softmask.errors import DataError


@dataclass(frozen=True)
class Download:
    """A file that its owners offer without asking anything."""

    address: str
    file: str
    """Its name in the data folder."""
    md5: str
    size: int


@dataclass(frozen=True)
class Source:
    """One data set, which may serve several sequences."""

    data: str
    """What is looked for in the data folder."""
    home: str = ""
    terms: str = ""
    obtain: str = ""
    """What to do where there is no file to fetch."""
    download: Download | None = None
    locate: Callable[[Path, int], Path] | None = None
    """Where below a data folder the set for so many tasks lies; raises DataError where it does not."""

    def not_in(self, root: Path, what: str) -> DataError:
        """Where it was looked for in vain."""
        return DataError(f"no {what} in {root}: expected {self.data} there ({self.home})")

    def missing(self, sequence: str) -> DataError:
        """Where nobody said where it lies."""
        how = f"`softmask data fetch {sequence} --data DIR` gets it" if self.download else self.obtain
        told = f"{sequence} needs {self.data}: pass the folder that holds it with --data or set SOFTMASK_DATA"
        return DataError(f"{told}; {how}" if how else told)
