"""Where runs are kept: one folder each, named by its config. A run only appends; whoever reads changes nothing.

<store>/<id>/config.json            what decides the result
             events.jsonl           what happened, a JSON object a line
             checkpoints/003.safetensors   the method after the fourth stage
             progress.safetensors   inside a task: state of method, optimizer, schedule and generators
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from softmask.errors import SoftmaskError
from softmask.runs.config import RunConfig
from softmask.runs.lease import Lease
from softmask.runs.state_file import StateFileError, read_state, write_json, write_state

FORMAT = 1
# Events that are written again when work is done again after a kill: the last one with these fields counts.
IDENTITY = {"epoch": ("task", "epoch"), "task": ("task",), "accuracy": ("after", "task")}
Listener = Callable[[dict[str, Any]], None]
"""Is told every event once it is on disk; may raise to stop the run there."""


class StoreError(SoftmaskError):
    """A run folder that is not what it should be."""


class StoredRun:
    """A run as it lies on disk. Reading never changes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self._read_config()

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
            return RunConfig.from_dict(dict(content["config"]))
        except (SoftmaskError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"{file} is not the config of a run: {error or type(error).__name__}") from None

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What happened, in order; work that was done again after a kill appears once."""
        found: dict[Any, dict[str, Any]] = {}
        for number, event in enumerate(self._lines()):
            if kind is None or event.get("kind") == kind:
                fields = IDENTITY.get(event["kind"])
                found[(event["kind"], *(event[field] for field in fields)) if fields else number] = event
        return list(found.values())

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            lines = (self.path / "events.jsonl").read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        for line in lines[:-1]:  # what stands after the last line end was torn by a kill
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and _is_whole(event):
                yield event

    @property
    def finished(self) -> bool:
        return bool(self.events("finished"))

    @property
    def status(self) -> str:
        """finished, failed or unfinished."""
        last = [event["kind"] for event in self.events() if event["kind"] in ("started", "failed", "finished")]
        return {"finished": "finished", "failed": "failed"}.get(last[-1] if last else "", "unfinished")

    def accuracies(self, measured: str = "test") -> dict[int, dict[int, float]]:
        """accuracies()[after][task]: in percent, after learning task `after`."""
        matrix: dict[int, dict[int, float]] = {}
        for event in self.events("accuracy"):
            if measured in event:
                matrix.setdefault(event["after"], {})[event["task"]] = 100 * event[measured]
        return matrix

    def task_names(self) -> dict[int, str]:
        """Which task stood at which place."""
        return {event["task"]: event["name"] for event in self.events("task")}

    def stages_done(self) -> int:
        """How many stages are learned and saved."""
        files = (self.path / "checkpoints").glob("[0-9][0-9][0-9].safetensors")
        return max((int(file.stem) + 1 for file in files), default=0)

    def require_results(self) -> None:
        """Raises if accuracies of saved stages are missing. A kill cannot do that: they are written first."""
        saved = self.stages_done()  # looked up first: whoever writes now adds events before checkpoints
        rows, learned, whole = self.accuracies("validation"), 0, 0
        for event in self.events("task"):
            learned += len(event.get("ids", ()))
            whole += len(rows.get(event["task"], ())) == learned
        if whole < saved:
            raise StoreError(
                f"{self.path / 'events.jsonl'} lacks results of tasks that were learned: delete {self.path} to run anew"
            )

    def checkpoint(self, stage: int) -> Any:
        """The method's state after a stage."""
        file = self.path / "checkpoints" / f"{stage:03}.safetensors"
        try:
            return read_state(file)
        except StateFileError as error:
            raise StoreError(f"{error}; delete this file: what it held is learned again") from None


class RunWriter:
    """Writes one run; the journal of the protocol. Use it as a context manager: it holds the folder's lease."""

    def __init__(
        self, path: Path, config: RunConfig, *, checkpoint_every: int, keep: str, listeners: Sequence[Listener] = ()
    ) -> None:
        self.path, self.config, self.checkpoint_every, self.keep = path, config, checkpoint_every, keep
        self.listeners = tuple(listeners)
        self._lease = Lease(path)
        self._epochs_since_save = 0

    def __enter__(self) -> RunWriter:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with ExitStack() as undo:  # the lease is given back if what follows fails
                undo.enter_context(self._lease)
                self._prepare()
                undo.pop_all()
        except OSError as error:
            raise StoreError(f"cannot write to {self.path}: {error}") from None
        return self

    def _prepare(self) -> None:
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", {"format": FORMAT, "config": self.config.to_dict()})
        (self.path / "checkpoints").mkdir(exist_ok=True)
        self._cut_torn_line()
        StoredRun(self.path).require_results()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.__exit__(kind, error, trace)

    @property
    def _events(self) -> Path:
        return self.path / "events.jsonl"

    def event(self, kind: str, **facts: Any) -> None:
        """Appends one line, and then tells the listeners; it is on disk when this returns, or not there at all."""
        self._lease.require()
        told = {"kind": kind, **facts}
        self._append((json.dumps(told) + "\n").encode())
        for listener in self.listeners:
            listener(told)

    def _append(self, line: bytes) -> None:
        try:
            # Unbuffered: a buffer would try again at closing what could not be written, and leave half of it.
            with open(self._events, "ab", buffering=0) as file:
                size = file.tell()
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._events, size)
                    raise
        except OSError as error:
            raise StoreError(f"cannot write {self._events}: {error}; start the run again when there is room") from None

    def finished(self) -> bool:
        return StoredRun(self.path).finished

    def stages_done(self) -> int:
        return StoredRun(self.path).stages_done()

    def load_stage(self) -> Any:
        return StoredRun(self.path).checkpoint(self.stages_done() - 1)

    def save_stage(self, stage: int, state: Any) -> None:
        self._lease.require()
        write_state(self._checkpoint(stage), state)
        (self.path / "progress.safetensors").unlink(missing_ok=True)
        if stage and self.keep != "all":
            self._checkpoint(stage - 1).unlink(missing_ok=True)
        self._epochs_since_save = 0

    def load_progress(self, stage: int) -> Any:
        file = self.path / "progress.safetensors"
        if not file.exists():
            return None
        try:
            progress = read_state(file)
        except StateFileError as error:
            warnings.warn(f"{error}; the task is learned from its start", stacklevel=2)
            return None
        return progress["state"] if progress["stage"] == stage else None

    def save_progress(self, stage: int, state: Any) -> None:
        self._epochs_since_save += 1
        if self._epochs_since_save >= self.checkpoint_every:
            self._lease.require()
            write_state(self.path / "progress.safetensors", {"stage": stage, "state": state})
            self._epochs_since_save = 0

    def _checkpoint(self, stage: int) -> Path:
        return self.path / "checkpoints" / f"{stage:03}.safetensors"

    def _cut_torn_line(self) -> None:
        """A kill between two bytes leaves half a line: it never was an event."""
        if self._events.exists():
            content = self._events.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self._events, whole)


class Store:
    """A folder of runs."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def open(
        self, config: RunConfig, *, checkpoint_every: int = 1, keep: str = "last", listeners: Sequence[Listener] = ()
    ) -> RunWriter:
        """The run's folder, made if it is new, for writing."""
        path = self.root / config.id()
        return RunWriter(path, config, checkpoint_every=checkpoint_every, keep=keep, listeners=listeners)

    def find(self, config: RunConfig) -> StoredRun | None:
        """The run of this config, if it was begun."""
        path = self.root / config.id()
        if not (path / "config.json").exists():
            return None
        run = self._whole_run(path)
        if run.config != config:
            raise StoreError(f"{path / 'config.json'} was changed after the run began: delete {path} to run it anew")
        return run

    def busy(self, config: RunConfig) -> bool:
        """Whether a live process writes the run of this config."""
        return Lease(self.root / config.id()).held()

    def runs(self) -> Iterator[StoredRun]:
        """Every readable run; `problems()` tells of the others."""
        for path in self._folders():
            try:
                yield self._whole_run(path)
            except SoftmaskError:
                continue

    def problems(self) -> list[str]:
        """Why folders in the store are no runs."""
        found = []
        for path in self._folders():
            try:
                self._whole_run(path)
            except SoftmaskError as error:
                found.append(str(error))
        return found

    @staticmethod
    def _whole_run(path: Path) -> StoredRun:
        run = StoredRun(path)
        run.require_results()
        return run

    def _folders(self) -> list[Path]:
        return sorted(path for path in self.root.glob("*") if path.is_dir()) if self.root.is_dir() else []


def _is_whole(event: dict[str, Any]) -> bool:
    """Whether a line that is JSON can be one of ours."""
    kind = event.get("kind")
    return isinstance(kind, str) and all(isinstance(event.get(field), int) for field in IDENTITY.get(kind, ()))
