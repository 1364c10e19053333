"""Writing a run: events are appended, checkpoints are replaced, and one process at a time holds the folder."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.events import digest_of_lines
from softmask.experiments.runs.stored_run import FORMAT, MOST_EVENTS, StoredRun, StoreError
from softmask.storage.lease import Lease, opened_if_plain
from softmask.storage.reading import read_plain
from softmask.storage.state_file import StateFileError, read_state, write_json, write_state

Listener = Callable[[dict[str, Any]], None]
"""Called with every event once it is on disk; may raise to stop the run."""


def refuse_links(folder: Path) -> None:
    """A store of another person may contain symbolic links: writing through one would change another file."""
    checkpoints = folder / "checkpoints"
    inside = checkpoints.iterdir() if checkpoints.is_dir() and not checkpoints.is_symlink() else ()
    for file in (folder, *folder.iterdir(), *inside):
        if file.is_symlink():
            raise StoreError(f"{file} is a symbolic link: a run is not written through links; remove it")


class RunWriter:
    """Writes one run; the journal of the protocol. Use it as a context manager: it holds the folder's lease."""

    def __init__(
        self, path: Path, config: RunConfig, *, checkpoint_every: int, keep: str, listeners: Sequence[Listener] = ()
    ) -> None:
        self.path, self.config, self.checkpoint_every, self.keep = path, config, checkpoint_every, keep
        self.listeners = tuple(listeners)
        self._lease = Lease(path)
        self._epochs_since_save = 0
        self._finished = False

    def __enter__(self) -> RunWriter:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_links(self.path)
            with ExitStack() as undo:  # the lease is given back if the rest fails
                undo.enter_context(self._lease)
                self._prepare()
                undo.pop_all()
        except OSError as error:
            raise StoreError(f"cannot write to {self.path}: {error}") from None
        return self

    def _prepare(self) -> None:
        for left in (*self.path.glob("*.tmp"), *self.path.glob("checkpoints/*.tmp")):
            left.unlink()  # by a process that was killed: we hold the lease
        if not (self.path / "config.json").exists():
            write_json(self.path / "config.json", {"format": FORMAT, "config": self.config.to_dict()})
        (self.path / "checkpoints").mkdir(exist_ok=True)
        self._remove_incomplete_line()
        summary = StoredRun(self.path).summary()
        if summary.problem is not None:
            raise StoreError(summary.problem)
        self._finished = summary.status == "finished"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.__exit__(kind, error, trace)

    @property
    def _events(self) -> Path:
        return self.path / "events.jsonl"

    def event(self, kind: str, **facts: Any) -> None:
        """Appends one line atomically and durably, and then calls the listeners."""
        self._lease.require()
        event = {"kind": kind, **facts}
        self._finished = self._finished or kind == "finished"
        if self._finished:  # from then on nothing changes but what is measured later
            before = read_plain(self._events, MOST_EVENTS) if self._events.exists() else b""
            event["digest"] = digest_of_lines(before, event)
        self._append((json.dumps(event) + "\n").encode())
        for listener in self.listeners:
            listener(event)

    def _append(self, line: bytes) -> None:
        try:
            # Unbuffered: a buffer would retry on closing and might leave half a line.
            opened = opened_if_plain(self._events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with open(opened, "ab", buffering=0) as file:
                size = os.fstat(opened).st_size
                try:
                    if file.write(line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    os.ftruncate(opened, size)
                    raise
        except OSError as error:
            raise StoreError(f"cannot write {self._events}: {error}; free some space and start the run again") from None

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
        if stage:
            self._statistics(stage - 1).unlink(missing_ok=True)
        if stage and self.keep != "all":
            self._checkpoint(stage - 1).unlink(missing_ok=True)
        self._epochs_since_save = 0

    def save_statistics(self, stage: int, state: Any) -> None:
        """Saves the state for accuracies without a task id, separate from the method's state."""
        self._lease.require()
        write_state(self._statistics(stage), state)

    def load_statistics(self) -> Any:
        """The state after the last stage; None if an earlier release began the run."""
        try:
            return read_state(self._statistics(self.stages_done() - 1))
        except StateFileError:
            return None

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

    def _statistics(self, stage: int) -> Path:
        return self.path / "checkpoints" / f"{stage:03}.statistics.safetensors"

    def _remove_incomplete_line(self) -> None:
        """Removes an incomplete last line, which a kill leaves behind."""
        if self._events.exists():
            content = read_plain(self._events, MOST_EVENTS)
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                descriptor = opened_if_plain(self._events, os.O_WRONLY | os.O_APPEND)
                os.ftruncate(descriptor, whole)
                os.close(descriptor)
