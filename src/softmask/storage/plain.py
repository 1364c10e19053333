"""Reading a small file whole, if it is a regular file: a pipe would be waited for, a device never ends."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MEBIBYTE = 2**20


def read_plain(path: Path, most: int = 64 * MEBIBYTE) -> bytes:
    """The content of a regular file of at most `most` bytes; anything else is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most // MEBIBYTE} MiB", str(path))
    return content


def parse_json(text: str | bytes) -> Any:
    """As `json.loads`; nesting that is too deep is a ValueError, as any other text that is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
