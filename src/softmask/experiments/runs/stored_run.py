"""A run on disk, as it is read. Reading never changes anything; `run_writer` writes.

<store>/<id>/config.json                    the config, which determines the result
             events.jsonl                   the events, one JSON object per line
             checkpoints/003.safetensors   the method after the fourth stage
             progress.safetensors   inside a task: state of method, optimizer, schedule and generators
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmask.errors import SoftmaskError
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.runs.config import RunConfig, read_config
from softmask.experiments.runs.events import Event, digest_of_names, once, read_events
from softmask.storage.reading import MEBIBYTE, parse_json, read_plain
from softmask.storage.state_file import StateFileError, read_state

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
MOST_EVENTS = 1024 * MEBIBYTE
Signature = tuple[int, ...]
"""Size, time and number of a run's files: equal ones have equal content, since a run only appends."""


@dataclass(frozen=True)
class Summary:
    """The most frequently used facts about a run."""

    status: str
    """finished, failed or unfinished."""
    tasks: int
    """Learned so far."""
    accuracy: float | None
    """The mean over the tasks learned so far, on their test sets."""
    problem: str | None = None
    """The reason why its results cannot be used."""
    data: str | None = None
    """A digest of its tasks, where it is known."""
    accepted: str | None = None
    """A digest of other tasks that were accepted as the same."""
    stale: str | None = None
    """The reason why its results do not belong to the current data."""


class StoreError(SoftmaskError):
    """The run folder is damaged."""


class StaleDataError(StoreError):
    """The data of the run have changed since."""


class StoredRun:
    """A run on disk. Reading never changes it."""

    def __init__(self, path: Path, known: tuple[RunConfig, Signature, Summary] | None = None) -> None:
        self.path = path
        self.config = known[0] if known else self._read_config()
        self._summary = known[1:] if known else None

    def _read_config(self) -> RunConfig:
        file = self.path / "config.json"
        try:
            content = parse_json(read_plain(file))
        except PermissionError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror}: ask its owner") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{file} cannot be read: {error}; delete {self.path} to run it again") from None
        version = content.get("format") if isinstance(content, dict) else None
        if version != FORMAT:
            raise StoreError(
                f"{self.path} has format {version!r}; this release reads {FORMAT}: use the one that wrote it"
            )
        try:
            return read_config(dict(content["config"]))
        except (SoftmaskError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"{file} is not the config of a run: {error or type(error).__name__}") from None

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """All events, in order; work that was done again after a kill appears once."""
        return once(event for event in self._read()[0] if kind is None or event["kind"] == kind)

    def _read(self) -> tuple[list[Event], str | None]:
        """All events that fit the schema, and the first damage."""
        file = self.path / "events.jsonl"
        try:
            return read_events(read_plain(file, MOST_EVENTS))
        except FileNotFoundError:
            return [], None
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error.strerror}") from None

    @property
    def finished(self) -> bool:
        return self.status == "finished"

    @property
    def status(self) -> str:
        """finished, failed or unfinished."""
        return self.summary().status

    def summary(self) -> Summary:
        """Read again only if the run's files have changed since."""
        now = signature(self.path)
        if self._summary is None or self._summary[0] != now:
            self._summary = now, self._summarise()
        return self._summary[1]

    def known_summary(self) -> Summary:
        """The summary when it was last read."""
        return self._summary[1] if self._summary is not None else self.summary()

    def _summarise(self) -> Summary:
        saved = self.stages_done()  # looked up first: whoever writes now adds events before checkpoints
        lines, damage = self._read()
        events = once(lines)
        kinds = [event["kind"] for event in events]
        last = [kind for kind in kinds if kind in ("started", "failed", "finished")][-1:]
        status = "finished" if "finished" in kinds else "failed" if last == ["failed"] else "unfinished"
        matrix = _matrix(events, "test")
        # Of a finished run checkpoints may be gone, but each of its tasks has been measured.
        needed = max(saved, kinds.count("task"), 1) if status == "finished" else saved
        problem = None
        if _whole_stages(events) < needed:
            problem = "lacks results of tasks that were learned"
        elif damage is not None:
            problem = f"has damaged events: {damage}"
        compared = [event for event in events if event["kind"] == "data"][-1:]
        return Summary(
            status,
            tasks=kinds.count("task"),
            accuracy=average_accuracy(matrix) if matrix else None,
            problem=problem and f"{self.path / 'events.jsonl'} {problem}: delete {self.path} to run it again",
            data=_data_digest(events),
            accepted=next((event["now"] for event in compared if event["match"]), None),
            stale=next((self._stale(event) for event in compared if not event["match"]), None),
        )

    def _stale(self, event: Event) -> str:
        return (
            f"{self.path} {event.get('reason', 'was learned from other data than are there now')}: "
            "`--changed-data rerun` runs it again, `accept` keeps its results"
        )

    def accuracies(self, measured: str = "test") -> dict[int, dict[int, float]]:
        """accuracies()[after][task]: in percent, after learning task `after`."""
        return _matrix(self.events("accuracy"), measured)

    def without_id(self, measured: str = "test") -> dict[str, dict[int, dict[int, float]]]:
        """without_id()[rule][after][task]: accuracies without a task id, in percent; empty for runs of earlier
        releases. The rules are those of `softmask.learning.without_id`."""
        found: dict[str, dict[int, dict[int, float]]] = {}
        for event in self.events("without_id"):
            for rule, share in event.get(measured, {}).items():
                found.setdefault(rule, {}).setdefault(event["after"], {})[event["task"]] = 100 * share
        return found

    def matrix(self, measured: str = "test") -> pd.DataFrame:
        """Accuracy in percent: row i after learning task i, column j on task j. Counted from 1."""
        import pandas as pd

        found = pd.DataFrame.from_dict(self.accuracies(measured), orient="index").sort_index().sort_index(axis=1)
        found.index, found.columns = found.index + 1, found.columns + 1
        return found.rename_axis(index="after task", columns="task")

    def task_names(self) -> dict[int, str]:
        """The name of the task at each position."""
        return {event["task"]: event["name"] for event in self.events("task")}

    def stages_done(self) -> int:
        """The number of stages that are learned and saved."""
        names = (file.stem for file in (self.path / "checkpoints").glob("*.safetensors"))
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    def require_results(self) -> None:
        """Raises if its results cannot be used: damaged events, or data that have changed since."""
        summary = self.summary()
        if summary.problem is not None:
            raise StoreError(summary.problem)
        if summary.stale is not None:
            raise StaleDataError(summary.stale)

    def checkpoint(self, stage: int) -> Any:
        """The method's state after a stage."""
        file = self.path / "checkpoints" / f"{stage:03}.safetensors"
        try:
            return read_state(file)
        except StateFileError as error:
            raise StoreError(f"{error}; delete this file: its task is learned again") from None


def _matrix(events: Iterable[Event], measured: str) -> dict[int, dict[int, float]]:
    matrix: dict[int, dict[int, float]] = {}
    for event in events:
        if event["kind"] == "accuracy" and measured in event:
            matrix.setdefault(event["after"], {})[event["task"]] = 100 * event[measured]
    return matrix


def _whole_stages(events: Sequence[Event]) -> int:
    """How many stages have the accuracies of all tasks that were learned until then."""
    # A search measures validation only; where one test was measured, all were.
    matrices = [matrix for part in ("validation", "test") if (matrix := _matrix(events, part)) or part == "validation"]
    learned = whole = 0
    for event in events:
        if event["kind"] == "task":
            learned += len(event["ids"])
            whole += all(len(rows.get(event["task"], ())) == learned for rows in matrices)
    return whole


def _data_digest(events: Sequence[Event]) -> str | None:
    """The digest of the tasks with which it was started; for a run of an older release, of the tasks that it
    learned."""
    digests = [event["data"] for event in events if event["kind"] == "started" and "data" in event]
    if digests:
        return str(digests[-1])
    tasks = [event for event in events if event["kind"] == "task"]
    if not tasks or any(len(event["ids"]) > 1 for event in tasks) or not any(e["kind"] == "finished" for e in events):
        return None
    return digest_of_names(event["name"] for event in sorted(tasks, key=lambda event: int(event["task"])))


def signature(folder: Path) -> Signature:
    """Of a run's folder, without opening a file."""
    found: list[int] = []
    place = str(folder)
    for name in ("config.json", "events.jsonl", "checkpoints"):
        try:
            facts = os.stat(f"{place}/{name}")
            found += (facts.st_size, facts.st_mtime_ns, facts.st_ino)
        except OSError:  # missing, or not readable by us: reading it will tell
            found += (-1, 0, 0)
    return tuple(found)
