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
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.index import Index
from softmask.experiments.runs.stored_run import FORMAT, StoredRun, StoreError
from softmask.storage.lease import Lease
from softmask.storage.state_file import StateFileError, read_state, write_json, write_state

__all__ = ["FORMAT", "Listener", "RunWriter", "Store", "StoreError", "StoredRun"]

Listener = Callable[[dict[str, Any]], None]
"""Is told every event once it is on disk; may raise to stop the run there."""


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

    def find(self, config: RunConfig, index: Index | None = None) -> StoredRun | None:
        """The run of this config, if it was begun. Whoever looks for many hands the store's index along."""
        path = self.root / config.id()
        if not (path / "config.json").exists():
            return None
        run = (index.find(path) or index.read(path)) if index else StoredRun(path)
        if (problem := run.known_summary().problem) is not None:
            raise StoreError(problem)
        if run.config != config:
            raise StoreError(f"{path / 'config.json'} was changed after the run began: delete {path} to run it anew")
        return run

    def index(self) -> Index:
        """What was found in this store the last time."""
        return Index(self.root)

    def busy(self, config: RunConfig) -> bool:
        """Whether a live process writes the run of this config."""
        return Lease(self.root / config.id()).held()

    def runs(self) -> Iterator[StoredRun]:
        """Every readable run; `problems()` tells of the others."""
        return (run for run in self.look() if isinstance(run, StoredRun))

    def problems(self) -> list[str]:
        """Why folders in the store are no runs."""
        return [problem for problem in self.look() if isinstance(problem, str)]

    def look(self) -> Iterator[StoredRun | str]:
        """Each folder as a run, or why it is none. What was found the last time is not read again."""
        index = self.index()
        for path in self._folders():
            try:
                run = index.find(path) or index.read(path)
            except SoftmaskError as error:
                yield str(error)
                continue
            yield run.known_summary().problem or self.copied(run) or run
        index.save(of_all=True)

    def copied(self, run: StoredRun) -> str | None:
        """A folder that was copied under another name would count as one more seed."""
        original = self.root / run.config.id()
        if run.path.name == original.name or not (original / "config.json").exists():
            return None
        return f"{run.path} has the config of {original.name}: a copy counts once"

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return [self.root / name for name in sorted(entry.name for entry in entries if entry.is_dir())]
