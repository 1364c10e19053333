"""Downloads a data file: resumes interrupted downloads, checks the file, and renames it only when it is complete.

The file grows as NAME.part. NAME.part.json stores the server's version of the file when the download began, so that
parts of different versions are never combined.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from softmask.errors import DataError
from softmask.experiments.sequences import Download

CHUNK = 1 << 16
STALLED = 30.0
"""Seconds without a byte after which a connection is given up."""
ATTEMPTS = 6
"""Consecutive attempts without progress before giving up."""
PAUSE = 1.0
"""Seconds before the second attempt; each later one waits twice as long."""
TRANSIENT = {408, 429, 500, 502, 503, 504}

Progress = Callable[[int, int], None]
"""Called with the number of bytes downloaded and the total."""


class ConnectionLost(Exception):
    """The connection ended or stalled before the file was complete; it is tried again."""


def fetch(
    download: Download,
    folder: Path,
    *,
    progress: Progress | None = None,
    stalled: float = STALLED,
    attempts: int = ATTEMPTS,
    pause: float = PAUSE,
) -> Path:
    """The file in the folder; fetched if it is not there."""
    target = folder / download.file
    if target.exists():
        if not target.is_file() or _md5(target) != download.md5:
            raise DataError(f"{target}: already there, but not the official file; move it away to fetch that one")
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = _Part(target, download)
    failures, furthest, reason = 0, part.size(), ""
    while failures < attempts:
        try:
            part.fetch_rest(progress or _silent, stalled)
        except ConnectionLost as error:
            # An attempt that brought some bytes is not a failure: a large file over a bad connection may need many.
            failures = 1 if part.size() > furthest else failures + 1
            furthest, reason = max(furthest, part.size()), str(error)
            if failures < attempts:
                time.sleep(pause * 2 ** (failures - 1))
            continue
        part.finish()
        return target
    raise DataError(
        f"{download.address}: broke off, {part.size():,} of {download.size:,} bytes are there ({reason}); the same "
        f"command continues"
    )


class NotWritten(Exception):
    """Writing failed, not the connection: another attempt would not help."""


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NotWritten(error.strerror or str(error)) from None


class _Part:
    """An incomplete file."""

    def __init__(self, target: Path, download: Download) -> None:
        self.target, self.download = target, download
        self.path = target.with_name(target.name + ".part")
        self.notes = target.with_name(target.name + ".part.json")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def fetch_rest(self, progress: Progress, stalled: float) -> None:
        have = self.size()
        if have == self.download.size:
            return
        try:
            with urllib.request.urlopen(self._request(have), timeout=stalled) as answer:
                self._append(answer, progress)
        except NotWritten as error:
            raise DataError(f"{self.path}: {error}; the connection is fine") from None
        except urllib.error.HTTPError as error:
            if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                self.remove()
                raise ConnectionLost("the part that is here does not fit the file") from None
            if error.code in TRANSIENT:
                raise ConnectionLost(f"the server answered {error.code}") from None
            raise DataError(
                f"{self.download.address}: the server answered {error.code} {_line(error.reason)}"
            ) from None
        except (ValueError, http.client.InvalidURL) as error:  # a redirect to what is not an address
            raise DataError(
                f"{self.download.address}: the server redirects to a malformed address ({_line(error)})"
            ) from None
        except (OSError, http.client.HTTPException) as error:  # refused, reset, stalled, cut off, no such host
            raise ConnectionLost(str(error) or type(error).__name__) from None
        if self.size() < self.download.size:
            raise ConnectionLost("the connection was closed")

    def finish(self) -> None:
        """Renames a complete and correct file; removes a wrong one."""
        found = _md5(self.path)
        if found != self.download.md5:
            self.remove()
            raise DataError(
                f"{self.download.address}: what came is not the official file (MD5 {found}, expected "
                f"{self.download.md5}); it was removed"
            )
        os.replace(self.path, self.target)
        self.remove()

    def remove(self) -> None:
        for path in (self.path, self.notes):
            path.unlink(missing_ok=True)

    def _request(self, have: int) -> urllib.request.Request:
        request = urllib.request.Request(self.download.address, headers={"User-Agent": "softmask"})
        version = self._version() if have else None
        if have and version:
            request.add_header("Range", f"bytes={have}-")
            request.add_header("If-Range", version)  # the rest if it is still the same file, else all of it
        return request

    def _version(self) -> str | None:
        with suppress(OSError, ValueError, AttributeError):
            version = json.loads(self.notes.read_text()).get(self.download.address)
            return version if isinstance(version, str) else None
        return None

    def _append(self, answer: http.client.HTTPResponse, progress: Progress) -> None:
        continued = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        if continued and not answer.headers.get("Content-Range", "").startswith(f"bytes {self.size()}-"):
            self.remove()
            raise ConnectionLost("the server sent another part than was asked for")
        if not continued:
            version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
            with _written():
                self.path.unlink(missing_ok=True)
                self.notes.write_text(json.dumps({self.download.address: version}))
        have = self.size()
        with _written():
            file = self.path.open("ab", buffering=0)
        with file:
            while chunk := answer.read(CHUNK):
                have += len(chunk)
                if have > self.download.size:
                    break
                with _written():
                    file.write(chunk)
                progress(have, self.download.size)
        if have > self.download.size:
            self.remove()
            raise DataError(
                f"{self.download.address}: sends more than the {self.download.size:,} bytes of the official file; "
                f"what came was removed"
            )


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _silent(have: int, size: int) -> None:
    return None


def _line(reason: object) -> str:
    return " ".join(str(reason).split())
