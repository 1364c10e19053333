"""How much memory the process has used at most."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory() -> int | None:
    """In bytes, since the peak was forgotten; where that is not possible, since the process began. None where the
    system does not tell."""
    with suppress(OSError):
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def forget_peak() -> None:
    """What the process held before, as for another run, does not count from now on. Only Linux can forget."""
    with suppress(OSError):
        FORGET.write_text("5")
