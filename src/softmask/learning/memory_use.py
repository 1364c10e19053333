"""How much memory the process has used at most."""

from __future__ import annotations

import sys


def peak_memory() -> int | None:
    """In bytes; None where the system does not tell. Of the whole process, so of all that ran in it before, too."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
