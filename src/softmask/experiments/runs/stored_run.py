"""A run as it lies on disk: its config, what happened, its checkpoints. Reading never changes anything."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmask.errors import SoftmaskError
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.runs.config import RunConfig, read_config
from softmask.storage.state_file import StateFileError, read_state

FORMAT = 1
# Events that are written again when work is done again after a kill: the last one with these fields counts.
IDENTITY = {
    "epoch": ("task", "epoch"),
    "task": ("task",),
    "accuracy": ("after", "task"),
    "pruning": ("ranked_over", "strategy"),
    "representation": ("onto", "union", "learned"),
}
Signature = tuple[int, ...]
"""Size, time and number of a run's files: equal ones have equal content, since a run only appends."""


@dataclass(frozen=True)
class Summary:
    """What is asked of a run most often."""

    status: str
    """finished, failed or unfinished."""
    tasks: int
    """Learned so far."""
    accuracy: float | None
    """The mean over the tasks learned so far, on their test sets."""
    problem: str | None = None
    """Why its results cannot be used."""


class StoreError(SoftmaskError):
    """A run folder that is not what it should be."""


class StoredRun:
    """A run as it lies on disk. Reading never changes it."""

    def __init__(self, path: Path, known: tuple[RunConfig, Signature, Summary] | None = None) -> None:
        self.path = path
        self.config = known[0] if known else self._read_config()
        self._summary = known[1:] if known else None

    def _read_config(self) -> RunConfig:
        file = self.path / "config.json"
        try:
            content = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise StoreError(f"{file} cannot be read: {error}; delete {self.path} to run it anew") from None
        version = content.get("format") if isinstance(content, dict) else None
        if version != FORMAT:
            raise StoreError(
                f"{self.path} has format {version!r}; this release reads {FORMAT}: use the one that wrote it"
            )
        try:
            return read_config(dict(content["config"]))
        except (SoftmaskError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{file} is not the config of a run: {error or type(error).__name__}") from None

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What happened, in order; work that was done again after a kill appears once."""
        return _once(event for event in self._lines() if kind is None or event["kind"] == kind)

    def _lines(self, without: str | None = None) -> Iterator[dict[str, Any]]:
        """All lines that are whole; those of one kind may be left out before they are read."""
        try:
            lines = (self.path / "events.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self.path / 'events.jsonl'} cannot be read: {error}") from None
        lines = lines[:-1]  # what stands after the last line end was torn by a kill
        if without:
            passed_over = b'{"kind": "%s"' % without.encode()
            lines = [line for line in lines if not line.startswith(passed_over)]
        for event in _parsed(lines):
            if isinstance(event, dict) and _is_whole(event):
                event["kind"] = sys.intern(event["kind"])
                yield event

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
        """As it was when it was last looked at."""
        return self._summary[1] if self._summary is not None else self.summary()

    def _summarise(self) -> Summary:
        saved = self.stages_done()  # looked up first: whoever writes now adds events before checkpoints
        events = _once(self._lines(without="epoch"))
        kinds = [event["kind"] for event in events]
        last = [kind for kind in kinds if kind in ("started", "failed", "finished")][-1:]
        status = "finished" if "finished" in kinds else "failed" if last == ["failed"] else "unfinished"
        matrix = _matrix(events, "test")
        # Of a finished run checkpoints may be gone, but each of its tasks has been measured.
        needed = max(saved, kinds.count("task"), 1) if status == "finished" else saved
        return Summary(
            status,
            tasks=kinds.count("task"),
            accuracy=average_accuracy(matrix) if matrix else None,
            problem=None if _whole_stages(events) >= needed else self._lacking(),
        )

    def _lacking(self) -> str:
        return f"{self.path / 'events.jsonl'} lacks results of tasks that were learned: delete {self.path} to run anew"

    def accuracies(self, measured: str = "test") -> dict[int, dict[int, float]]:
        """accuracies()[after][task]: in percent, after learning task `after`."""
        return _matrix(self.events("accuracy"), measured)

    def task_names(self) -> dict[int, str]:
        """Which task stood at which place."""
        return {event["task"]: event["name"] for event in self.events("task")}

    def stages_done(self) -> int:
        """How many stages are learned and saved."""
        names = (file.stem for file in (self.path / "checkpoints").glob("*.safetensors"))
        return max((int(name) + 1 for name in names if name.isdecimal()), default=0)

    def require_results(self) -> None:
        """Raises if accuracies of saved stages are missing. A kill cannot do that: they are written first."""
        if (problem := self.summary().problem) is not None:
            raise StoreError(problem)

    def checkpoint(self, stage: int) -> Any:
        """The method's state after a stage."""
        file = self.path / "checkpoints" / f"{stage:03}.safetensors"
        try:
            return read_state(file)
        except StateFileError as error:
            raise StoreError(f"{error}; delete this file: what it held is learned again") from None


def _parsed(lines: list[bytes]) -> Iterator[Any]:
    """All lines that are JSON. Those of a sound file are read at once: the events then share the names of their
    fields, and a store of a thousand runs takes half the memory."""
    try:
        yield from json.loads(b"[" + b",".join(lines) + b"]")
    except ValueError:
        for line in lines:
            with suppress(ValueError):
                yield json.loads(line)


def _once(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of events that were written again, the last one, at the place of the first."""
    found: dict[Any, dict[str, Any]] = {}
    for number, event in enumerate(events):
        fields = IDENTITY.get(event["kind"])
        found[(event["kind"], *(event[field] for field in fields)) if fields else number] = event
    return list(found.values())


def _matrix(events: Iterable[dict[str, Any]], measured: str) -> dict[int, dict[int, float]]:
    matrix: dict[int, dict[int, float]] = {}
    for event in events:
        if event["kind"] == "accuracy" and measured in event:
            matrix.setdefault(event["after"], {})[event["task"]] = 100 * event[measured]
    return matrix


def _whole_stages(events: Iterable[dict[str, Any]]) -> int:
    """How many stages have the accuracies of all tasks that were learned until then."""
    events = list(events)
    # A search measures validation alone; where one test was measured, all were.
    matrices = [matrix for part in ("validation", "test") if (matrix := _matrix(events, part)) or part == "validation"]
    learned = whole = 0
    for event in events:
        if event["kind"] == "task":
            learned += len(event.get("ids", ()))
            whole += all(len(rows.get(event["task"], ())) == learned for rows in matrices)
    return whole


def _is_whole(event: dict[str, Any]) -> bool:
    """Whether a line that is JSON can be one of ours."""
    kind = event.get("kind")
    if not isinstance(kind, str):
        return False
    if not all(isinstance(event.get(field), (int, str)) for field in IDENTITY.get(kind, ())):
        return False
    return kind != "accuracy" or all(_is_share(event.get(part, 0.0)) for part in ("validation", "test"))


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def signature(folder: Path) -> Signature:
    """Of a run's folder, without opening a file."""
    found: list[int] = []
    place = str(folder)
    for name in ("config.json", "events.jsonl", "checkpoints"):
        try:
            facts = os.stat(f"{place}/{name}")
            found += (facts.st_size, facts.st_mtime_ns, facts.st_ino)
        except OSError:  # not there, or not for us: reading it will tell
            found += (-1, 0, 0)
    return tuple(found)
