"""Experiment trackers, fed from `events.jsonl`: every event is logged once, even if the run was interrupted.

The number of lines that a tracker has received is kept beside them (`tracked-tensorboard.json`). A tracker that was
unavailable, or that is added after a run has finished, gets the rest later. Trackers are imported only when used.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from softmask.errors import SoftmaskError, UnknownName
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.events import IDENTITY
from softmask.experiments.runs.grid_file import flat
from softmask.experiments.runs.run_writer import refuse_links
from softmask.experiments.runs.store import Listener, Store, StoredRun
from softmask.storage.lease import opened_if_plain
from softmask.storage.reading import parse_json, read_plain
from softmask.storage.state_file import write_json

FORMAT = 1
TRACKERS = ("tensorboard", "mlflow", "wandb")
"""A tracker has the name of the module that must be installed and of the extra of softmask."""
EPOCH_FIELDS = {"train_loss": "train/loss", "val_loss": "validation/loss", "val_accuracy": "validation/accuracy"}


@dataclass(frozen=True)
class Point:
    """Metrics at one step: an epoch, counted over the whole run, or a task."""

    axis: Literal["epoch", "task"]
    step: int
    values: dict[str, float]


class PointStream:
    """Turns events into points. Work that was done again after a kill gives none: its metrics are the same."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._epochs = 0

    def points(self, event: Mapping[str, Any]) -> Iterator[Point]:
        kind = event["kind"]
        identity = (kind, *(event[field] for field in IDENTITY.get(kind, ())))
        if kind not in IDENTITY or identity in self._seen:
            return
        self._seen.add(identity)
        if kind == "epoch":
            self._epochs += 1
            named = {EPOCH_FIELDS.get(name, name): event.get(name) for name in ("lr", "task", *EPOCH_FIELDS)}
            yield Point("epoch", self._epochs, _numbers(named))
        elif kind == "accuracy":
            values = {f"{name}/task {event['task'] + 1:03}": event.get(name) for name in ("test", "validation")}
            yield Point("task", event["after"] + 1, _numbers(values))
        elif kind == "without_id":
            place = f"task {event['task'] + 1:03}"
            values = {f"{part}/without id/{place}": event.get(part) for part in ("test", "validation")}
            yield Point("task", event["after"] + 1, _numbers(values))
        elif kind == "task":
            seconds = {f"seconds/{name}": event.get(f"{name}_seconds") for name in ("learn", "end")}
            yield Point("task", event["task"] + 1, _numbers({**seconds, "facts": event.get("facts")}))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """All numbers, finite or not; nested ones are named by their path."""
    found = flat(values, "/").items()
    return {
        name: float(value) for name, value in found if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class TrackerMissing(SoftmaskError):
    """The tracker is not installed."""


class Tracker(Protocol):
    """One run in an experiment tracker."""

    @property
    def remote(self) -> str:
        """The tracker's name of the run."""

    def log(self, point: Point) -> None:
        """Logs the metrics."""

    def flush(self) -> None:
        """Makes sure that logged metrics survive a kill."""

    def close(self, status: str) -> None:
        """Ends the run as finished, failed or unfinished."""


def check_trackers(names: Sequence[str]) -> None:
    """Checks the trackers before anything is run."""
    for name in names:
        if name not in TRACKERS:
            raise UnknownName("tracker", name, TRACKERS)
        if not installed(name):
            raise TrackerMissing(f"{name} is not installed: pip install 'softmask[{name}]'")


def installed(module: str) -> bool:
    """Without importing it."""
    return importlib.util.find_spec(module) is not None


@contextmanager
def tracked(config: RunConfig, store: Store, names: Sequence[str]) -> Iterator[list[Listener]]:
    """Listeners for a run; at the end the trackers have all events."""
    check_trackers(names)
    with ExitStack() as ends:
        trackings = [Tracking(config, store, name) for name in names]
        for tracking in trackings:
            ends.callback(tracking.close)
        yield list(trackings)


class Tracking:
    """One run and one tracker. A tracker that fails is dropped, and the run continues without it."""

    def __init__(self, config: RunConfig, store: Store, name: str) -> None:
        self.config, self.store, self.name = config, store, name
        self.folder = store.root / config.id()
        self._file = self.folder / f"tracked-{name}.json"
        self._stream = PointStream()
        self._offset = self._lines = 0
        self._tracker: Tracker | None = None
        self._sent = 0
        self._broken = False

    def __call__(self, event: dict[str, Any]) -> None:
        self._safely(self._catch_up)

    def close(self) -> None:
        if self.store.find(self.config, stale_too=True) is not None:
            self._safely(self._finish)

    def _safely(self, work: Any) -> None:
        if self._broken:
            return
        try:
            work()
        except Exception as error:  # whatever another package may raise
            self._broken = True
            warnings.warn(
                f"{self.name} stopped: {type(error).__name__}: {str(error)[:200]}; the run goes on; the same command "
                f"with `--track {self.name}` sends the rest",
                stacklevel=2,
            )

    def _finish(self) -> None:
        self._catch_up()
        if self._tracker is not None:
            self._tracker.close(StoredRun(self.folder).status)

    def _catch_up(self) -> None:
        new = [point for line in self._new_lines() for point in self._points(line)]
        if not new and self._sent >= self._lines:
            return
        refuse_links(self.folder)
        tracker = self._open()
        for point in new:
            tracker.log(point)
        tracker.flush()
        self._sent = self._lines
        write_json(self._file, {"format": FORMAT, "lines": self._sent, "remote": tracker.remote})

    def _points(self, line: bytes) -> Iterator[Point]:
        """Those of a line that was not sent before; the stream must hear the others too."""
        self._lines += 1
        try:
            found = list(self._stream.points(json.loads(line)))
        except (ValueError, KeyError, TypeError, RecursionError):
            return  # a damaged line is no event
        if self._lines > self._already():
            yield from found

    def _new_lines(self) -> list[bytes]:
        with open(opened_if_plain(self.folder / "events.jsonl", os.O_RDONLY), "rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self._offset += whole
        return content[:whole].splitlines()

    def _already(self) -> int:
        if not self._sent:
            self._sent = int(self._kept().get("lines", 0))
        return self._sent

    def _kept(self) -> dict[str, Any]:
        try:
            return dict(parse_json(read_plain(self._file)))
        except (OSError, ValueError, TypeError):
            return {}

    def _open(self) -> Tracker:
        if self._tracker is None:
            from softmask.experiments.trackers.backends import BACKENDS

            # `remote` is the tracker's name of the run if it was tracked before.
            self._tracker = BACKENDS[self.name](StoredRun(self.folder), self._kept().get("remote"))
        assert self._tracker is not None
        return self._tracker


def folder_of(run: StoredRun, name: str) -> Path:
    """A folder for the tracker's own files."""
    folder = run.path / name
    folder.mkdir(exist_ok=True)
    return folder
