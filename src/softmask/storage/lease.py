"""Who writes to a folder: one process at a time, wherever it runs; what a dead one left may be taken over."""

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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from softmask.errors import SoftmaskError

LARGEST = 4096  # bytes that a claim may have
FAR_AHEAD = 600.0  # seconds by which no two clocks differ
PAUSES = (0.2, 1.0, 3.0)  # seconds between attempts to read it


class FolderBusyError(SoftmaskError):
    """Somebody else writes there."""


class Lease:
    """The right to write to a folder, kept alive by a heartbeat.

    A lease of a dead process on this machine is free at once; one from another machine when its heartbeat has stopped
    for `stale_after` seconds.
    """

    def __init__(self, folder: Path, *, beat: float = 10.0, stale_after: float = 60.0) -> None:
        self.path, self._guard = folder / "lease.json", folder / "lease.lock"
        self.beat, self.stale_after = beat, stale_after
        self.token = uuid.uuid4().hex
        self.lost = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        with self._alone():
            holder = self._holder()
            if holder is not None and self._alive(holder):
                raise FolderBusyError(
                    f"{self.path.parent} is being written by process {holder.get('pid')} on {holder.get('host')}: "
                    "wait for it, or stop it and start again"
                )
            aside = self.path.with_name(self.path.name + ".tmp")
            aside.unlink(missing_ok=True)
            with open(opened_if_plain(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
                file.write(json.dumps(self._claim()))
            os.replace(aside, self.path)
        self._thread = threading.Thread(target=self._keep_alive, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with suppress(FileNotFoundError), self._alone():  # a folder that was removed needs no release
            if self._mine():
                self.path.unlink()

    def held(self) -> bool:
        """Whether somebody who is alive holds the folder now."""
        holder = self._holder()
        try:
            return holder is not None and self._alive(holder)
        except FileNotFoundError:  # given back in between
            return False

    def _claim(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "born": _born(os.getpid()),
        }

    def require(self) -> None:
        """Raises if the lease was taken over, as may happen to a process that slept too long."""
        # Looked up, not left to the heartbeat: a process that wakes up writes before its next beat.
        for pause in PAUSES:
            if self.lost or self._holder() != {}:
                break
            time.sleep(pause)  # it cannot be read: a file system may have a bad moment
        if self.lost or not self._mine():
            raise FolderBusyError(f"{self.path.parent} was taken over by another process, or removed: this one stops")

    def _keep_alive(self) -> None:
        while not self._stop.wait(self.beat):
            holder = self._holder()
            if holder and holder.get("token") != self.token:
                self.lost = True
                return
            with suppress(OSError):  # gone or unreadable just now: whoever writes next looks again
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
        except (OSError, ValueError, TypeError, SoftmaskError):
            return {}  # damaged: alive only as long as its heartbeat is young

    def _alive(self, holder: dict[str, Any]) -> bool:
        if holder.get("machine") == _machine():
            pid = holder.get("pid")
            return isinstance(pid, int) and _born(pid) is not None and _born(pid) == holder.get("born")
        # The clocks of two machines may differ, but a time far ahead is no heartbeat.
        return -FAR_AHEAD < time.time() - self.path.stat().st_mtime < self.stale_after

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Reading and replacing the lease is one act."""
        with open(opened_if_plain(self._guard, os.O_RDWR | os.O_CREAT), "r+") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            yield


def opened_if_plain(path: Path, flags: int) -> int:
    """A file in a folder from elsewhere: a link could lead anywhere, a pipe would be waited for."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise SoftmaskError(f"{path}: refused, it is not a plain file") from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise SoftmaskError(f"{path}: refused, it is not a plain file")


def _machine() -> str:
    """Where process numbers mean the same: one boot of one host, and there one container."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _born(pid: int) -> str | None:
    """When a process started, so that another one with its number is not taken for it. None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return _running(pid)


def _running(pid: int) -> str | None:
    """Where there is no /proc: whether the process exists."""
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "running"
