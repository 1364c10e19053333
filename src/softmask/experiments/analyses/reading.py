"""A whole store read once: its runs in memory, and the folders that were left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.accuracy import measures
from softmask.experiments.analyses.grouping import Runs
from softmask.experiments.runs.store import Store, StoredRun

DAMAGES = (KeyError, TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError)


class RunInMemory(StoredRun):
    """A stored run whose events are read once, since many analyses need them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._matrices: dict[str, dict[int, dict[int, float]]] = {}

    @cached_property
    def _all(self) -> list[dict[str, Any]]:
        return super().events()

    @cached_property
    def _by_kind(self) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for event in self._all:
            found.setdefault(event["kind"], []).append(event)
        return found

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return self._all if kind is None else self._by_kind.get(kind, [])

    def accuracies(self, measured: str = "test") -> dict[int, dict[int, float]]:
        if measured not in self._matrices:
            self._matrices[measured] = super().accuracies(measured)
        return self._matrices[measured]

    @cached_property
    def finished(self) -> bool:
        return super().finished


@dataclass
class Reading:
    """Contents of a store."""

    root: Path
    runs: Runs = field(default_factory=Runs)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Folders that are not complete runs, with the reason."""


def read_store(store: Store, watch: Callable[[int], None] | None = None) -> Reading:
    """Every folder of the store is either a run or left out with a reason."""
    reading = Reading(store.root)
    for path in sorted(path for path in store.root.iterdir() if path.is_dir()):
        try:
            run = RunInMemory(path)
            run.require_results()
            if (copied := store.copied(run)) is not None:
                raise SoftmaskError(copied)
            require_answers(run)
        except SoftmaskError as error:
            reading.left_out.append((path.name, str(error)))
        else:
            reading.runs.append(run)
            if watch is not None:
                watch(len(reading.runs))
    return reading


def require_answers(run: StoredRun) -> None:
    """Raises if an analysis would fail on the events."""
    try:
        _try_out(run)
    except DAMAGES as error:
        raise SoftmaskError(f"damaged events: {type(error).__name__} {error}") from None


def _try_out(run: StoredRun) -> None:
    matrix, tasks = run.accuracies(), run.events("task")
    run.task_names()
    for event in tasks:
        float(event["learn_seconds"]) + float(event["end_seconds"])
        dict(event.get("facts") or {})
    if run.finished and matrix:
        learned = sum(len(event["ids"]) for event in tasks)
        if len(matrix[max(matrix)]) != learned:
            raise ValueError(f"{learned} tasks were learned, {len(matrix[max(matrix)])} are in the last results")
        measures(run, {})
