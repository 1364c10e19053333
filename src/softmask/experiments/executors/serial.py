"""One item after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from softmask.experiments.executors.outcome import Item, Outcome, Result, attempt


@dataclass(frozen=True)
class SerialExecutor:
    """The plainest executor, and what the others must agree with."""

    jobs: int = 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Outcome[Item, Result]]:
        return (attempt(function, item) for item in items)
