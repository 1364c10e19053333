"""Everything that is wrong with a data set at once, so that it can be mended at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from softmask.errors import DataError

MOST = 100  # whoever has more than that to mend has another set than is expected


# An empty list costs fifty times its text: where there are many, a small file would fill memory.
LETTERS_A_BRACKET, SPARE_BRACKETS = 20, 10_000


def too_many_brackets(text: bytes | str) -> bool:
    """Whether a JSON text has more lists and objects than any honest file has for its length."""
    kinds: tuple[Any, ...] = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    return sum(text.count(kind) for kind in kinds) > SPARE_BRACKETS + len(text) // LETTERS_A_BRACKET


class DataErrors(DataError):
    """Several things are wrong. As text it is the first of them; `softmask data check` lists those of a sequence."""

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
        """What is raised inside is kept for later."""
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
