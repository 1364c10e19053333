"""Errors that a user can fix. The command line prints them in one or two lines, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager


class SoftmaskError(Exception):
    """The message says what was wrong, what was expected and what to do."""


class UnknownName(SoftmaskError):
    """An unknown name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        super().__init__(f"unknown {kind} {name!r}{choices(name, sorted(known))}{hint}")


class ConfigError(SoftmaskError):
    """An invalid config."""


class DataError(SoftmaskError):
    """A data file is missing, damaged or of the wrong kind."""


def escaped(text: str) -> str:
    """Text with visible control characters: file names may contain terminal escape sequences."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def choices(name: str, known: Iterable[str]) -> str:
    """The nearest known name, and all known names."""
    names = list(known)
    near = nearest(name, names)
    return f"{near} Known: {', '.join(names)}" if near else f"; known: {', '.join(names) or 'none'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """`: did you mean 'spg'?`, or nothing where no known name is near."""
    lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.5)
    return f": did you mean {lower[matches[0]]!r}?" if matches else ""


MOST = 100  # with more problems than this, it is probably another dataset


class DataErrors(DataError):
    """Several problems. The message is the first of them; `softmask data check` lists all problems of a sequence."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = f" (and {len(problems) - 1} more: see `softmask data check`)" if len(problems) > 1 else ""
        super().__init__(problems[0] + more)
        self.problems = tuple(problems)


class Problems:
    """Goes on after a mistake, and raises all of them in the end."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Errors that are raised inside are kept for later."""
        try:
            yield
        except DataError as error:
            self.found += problems_in(error)
            if len(self.found) >= MOST:
                self.raise_any()

    def raise_any(self) -> None:
        if self.found:
            raise DataErrors(self.found)


def problems_in(error: DataError) -> tuple[str, ...]:
    return error.problems if isinstance(error, DataErrors) else (str(error),)
