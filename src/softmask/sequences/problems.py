"""Everything that is wrong with a data set at once, so that it can be mended at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from softmask.errors import DataError

MOST = 100  # whoever has more than that to mend has another set than is expected


class DataErrors(DataError):
    """Several things are wrong. As text it is the first of them; `softmask data check` lists them all."""

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
