"""Whether stored results belong to the data that are there now. A task's name holds a digest of its samples.

A run whose data have changed is marked in its events: it is left out of all tables until it is run again or accepted,
or until the old data are back.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from softmask.errors import ConfigError, SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.events import digest_of_names
from softmask.experiments.runs.store import StaleDataError, Store, StoredRun, StoreError
from softmask.experiments.sequences import load_sequence
from softmask.learning.seeds import Seeds

ChangedData = Literal["refuse", "rerun", "accept"]
POLICIES: tuple[ChangedData, ...] = ("refuse", "rerun", "accept")


class TaskNames:
    """The names of a config's tasks as they are now. Many runs share their tasks: each sequence is loaded once."""

    def __init__(self, data: Path | None) -> None:
        self.data = data
        self._known: dict[tuple[str, Seeds], tuple[str, ...] | None] = {}

    def of(self, config: RunConfig) -> tuple[str, ...] | None:
        """None where the data are not there: nothing can be compared then."""
        key = config.sequence, config.seeds
        if key not in self._known:
            self._known[key] = None
            with suppress(SoftmaskError):
                tasks = load_sequence(config.sequence, self.data, config.seeds).tasks
                self._known[key] = tuple(task.name for task in tasks)
        names = self._known[key]
        return None if names is None else names[: config.tasks]


def check_policy(policy: str) -> ChangedData:
    for known in POLICIES:
        if policy == known:
            return known
    raise ConfigError(f"changed data: one of {', '.join(POLICIES)}, not {policy!r}")


def difference(known: StoredRun, names: Sequence[str]) -> str | None:
    """How the tasks of a run differ from those that are there now."""
    summary, now, there = known.known_summary(), digest_of_names(names), len(names)
    if now in (summary.data, summary.accepted):
        return None
    learned = known.events("task")
    count = sum(len(event["ids"]) for event in learned)
    if count > there or (known.finished and count < there):
        return f"learned {count} tasks, there are {there} now"
    for event in learned:
        if len(event["ids"]) == 1 and (event["task"] >= there or event["name"] != names[event["task"]]):
            return f"learned its task {event['task'] + 1} from other images than are there now"
    return None if summary.data is None else "learned from other images than are there now"


def settle(known: StoredRun, names: Sequence[str], store: Store, policy: ChangedData = "refuse") -> StoredRun | None:
    """The run if its data are those that are there now, or were accepted; None if it is to be run again.

    Raises StaleDataError where the data differ and nobody said what to do.
    """
    reason, now = difference(known, names), digest_of_names(names)
    if reason is None:
        if known.known_summary().stale is None:
            return known
        mark(store, known, match=True, now=now)
        return StoredRun(known.path)
    if policy == "rerun":
        store.put_aside(known)
        return None
    if policy == "accept" and known.finished:
        mark(store, known, match=True, now=now)
        return StoredRun(known.path)
    if not known.finished:
        raise StoreError(f"{known.path} {reason}: `--changed-data rerun` begins it again")
    if known.known_summary().stale is None:
        with suppress(SoftmaskError):  # a store that we may only read
            mark(store, known, match=False, now=now, reason=reason)
    raise StaleDataError(
        f"{known.path} {reason}: it is left out of tables; `--changed-data rerun` runs it again, `accept` keeps its "
        "results"
    )


def mark(store: Store, known: StoredRun, **facts: object) -> None:
    with store.open(known.config) as writer:
        writer.event("data", **facts)


def check_sequences(store: Store, sequences: Iterable[str], names: TaskNames) -> None:
    """Compares every finished run of these sequences, so that old and new results do not end in one row."""
    wanted = set(sequences)
    for run in list(store.runs()):
        if run.config.sequence in wanted and run.known_summary().status == "finished":
            there = names.of(run.config)
            if there is not None:
                try:
                    settle(run, there, store)
                except SoftmaskError as error:
                    warnings.warn(str(error), stacklevel=2)
