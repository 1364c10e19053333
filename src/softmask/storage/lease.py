"""One writer at a time in a folder: a file lock, and a heartbeat where locks do not reach other machines."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from softmask.errors import SoftmaskError

LARGEST = 4096  # bytes of lease.json
CLOCK_SKEW = 600.0  # seconds by which no two clocks differ
PAUSES = (0.2, 1.0, 3.0)  # seconds between attempts to read it
LOCK_PAUSES = (0.02, 0.1, 0.3)  # seconds between attempts to lock: `held` locks for a moment


class FolderBusyError(SoftmaskError):
    """Another process is writing to the folder."""


class Lease:
    """The exclusive right to write to a folder. The holder keeps `lease.lock` locked (flock) until its process ends. On
    some shared file systems such a lock is not seen by other machines, so the holder is named in `lease.json`, too,
    whose time of change is its heartbeat:
    a holder on another machine counts as alive until its heartbeat has stopped for `stale_after` seconds.
    """

    def __init__(self, folder: Path, *, beat: float = 10.0, stale_after: float = 60.0) -> None:
        self.path, self._lock_file = folder / "lease.json", folder / "lease.lock"
        self.beat, self.stale_after = beat, stale_after
        self.token = uuid.uuid4().hex
        self.lost = False
        self._lock: int | None = None
        self._locks_work = True
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self._lock = self._locked()
        try:
            holder = self._holder()
            if self._lock is None or (holder is not None and self._alive_elsewhere(holder)):
                known = holder or {}
                raise FolderBusyError(
                    f"{self.path.parent} is being written by process {known.get('pid')} on {known.get('host')}: "
                    "wait for it, or stop it and start again"
                )
            self._write_claim()
        except BaseException:
            self._unlock()
            raise
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._mine():
            self.path.unlink(missing_ok=True)
        self._unlock()

    def held(self) -> bool:
        """Whether a live process holds the folder now."""
        if (holder := self._holder()) is None:
            return False
        try:
            if (lock := self._locked()) is None:
                return True
            os.close(lock)
        except OSError:  # a store that may only be read: the heartbeat must do
            self._locks_work = False
        with suppress(FileNotFoundError):  # released in the meantime
            return self._alive_elsewhere(holder)
        return False

    def require(self) -> None:
        """Raises if the lease was taken over, as may happen to a process that was suspended for long."""
        # Read here rather than left to the heartbeat: a process that wakes up writes before its next beat.
        for pause in PAUSES:
            if self.lost or self._holder() != {}:
                break
            time.sleep(pause)  # not readable: a network file system may fail for a moment
        if self.lost or not self._mine():
            raise FolderBusyError(f"{self.path.parent} was taken over by another process, or removed: this one stops")

    def _locked(self) -> int | None:
        """A descriptor that holds the lock; None if another one does."""
        descriptor = opened_if_plain(self._lock_file, os.O_RDWR | os.O_CREAT)
        for pause in (*LOCK_PAUSES, None):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locks_work = True
                return descriptor
            except BlockingIOError:
                if pause is not None:
                    time.sleep(pause)
            except OSError as error:
                if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                    self._locks_work = False  # not on this file system: the heartbeat must do
                    return descriptor
                os.close(descriptor)
                raise
        os.close(descriptor)
        return None

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _write_claim(self) -> None:
        claim = {"token": self.token, "host": socket.gethostname(), "pid": os.getpid()}
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        with open(opened_if_plain(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
            file.write(json.dumps(claim))
        os.replace(temporary, self.path)

    def _keep_alive(self) -> None:
        while not self._stop.wait(self.beat):
            holder = self._holder()
            if holder and holder.get("token") != self.token:
                self.lost = True
                return
            with suppress(OSError):  # removed or not readable just now: the next write looks again
                if holder:
                    os.utime(self.path)

    def _mine(self) -> bool:
        return (self._holder() or {}).get("token") == self.token

    def _holder(self) -> dict[str, Any] | None:
        try:
            with open(opened_if_plain(self.path, os.O_RDONLY), "rb") as file:
                return dict(json.loads(file.read(LARGEST)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError, SoftmaskError):
            return {}

    def _alive_elsewhere(self, holder: dict[str, Any]) -> bool:
        """Whether a holder whose lock we cannot see has a recent heartbeat."""
        if self._locks_work and holder.get("host") == socket.gethostname():
            return False  # it would hold the lock
        # The clocks of two machines may differ, but a time far ahead is not a heartbeat.
        return -CLOCK_SKEW < time.time() - self.path.lstat().st_mtime < self.stale_after


def opened_if_plain(path: Path, flags: int, *, follow_links: bool = False) -> int:
    """A descriptor of a regular file. A link in a foreign folder could lead anywhere; a pipe or device may never end.

    A file with a second name (a hard link) is not appended to: the other name may be in another folder.
    """
    no_follow = 0 if follow_links else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | no_follow | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise SoftmaskError(f"{path}: refused, it is not a plain file") from None
        raise
    facts = os.fstat(descriptor)
    if stat.S_ISREG(facts.st_mode) and not (flags & os.O_APPEND and facts.st_nlink > 1):
        return descriptor
    os.close(descriptor)
    reason = "it has a second name (a hard link)" if stat.S_ISREG(facts.st_mode) else "it is not a plain file"
    raise SoftmaskError(f"{path}: refused, {reason}")
