"""The interface of all executors, which map a function over items to outcomes; and the simplest executor, in series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from softmask.errors import SoftmaskError

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKER_DIED = "WorkerDied"
"""The kind of an outcome whose worker was killed, ran out of memory or lost its machine in every attempt."""


class ExecutorError(SoftmaskError):
    """The executor cannot do this."""


@dataclass(frozen=True)
class Outcome(Generic[Item, Result]):
    """The end of one item: a result, or an error message with the name of its class."""

    item: Item
    result: Result | None = None
    error: str | None = None
    kind: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None


class Executor(Protocol):
    """Calls a function on every item. An error of one item is its outcome; the others continue."""

    @property
    def jobs(self) -> int:
        """The number of items that are processed at once."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Outcome[Item, Result]]:
        """One outcome per item, in order of completion. Closing the iterator stops the remaining work."""


def attempt(function: Callable[[Item], Result], item: Item) -> Outcome[Item, Result]:
    """Calls the function; its error becomes an outcome, except Ctrl-C and the end of the process."""
    try:
        return Outcome(item, result=function(item))
    except Exception as error:
        return Outcome(item, error=error_text(error), kind=type(error).__name__)


def error_text(error: BaseException) -> str:
    """The message of our own errors; for others, preceded by the name of the class."""
    if isinstance(error, SoftmaskError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@dataclass(frozen=True)
class SerialExecutor:
    """The simplest executor; all others must give the same results."""

    jobs: int = 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Outcome[Item, Result]]:
        return (attempt(function, item) for item in items)
