"""Where results come from: versions, machine, commit, the code of the method. Written down with every start."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import softmask
from softmask.experiments.runs.stored_run import StoredRun
from softmask.learning.method_registry import METHODS

SECONDS_FOR_GIT = 10.0


def circumstances() -> dict[str, Any]:
    """The facts that may explain why results differ."""
    return {
        "softmask": softmask.__version__,
        **commit_facts(Path(softmask.__file__)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),  # of two processors with other ones the last bits differ
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@functools.cache
def commit_facts(file: Path) -> dict[str, Any]:
    """The commit of a source tree and whether it was changed since. Nothing for an installed package."""
    folder = file.resolve().parent
    # An environment inside somebody's repository is not part of it: the file itself must be in the commit.
    if _git(folder, "ls-files", "--error-unmatch", file.name) is None:
        return {}
    head, changed = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    return {} if head is None else {"commit": head, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_FOR_GIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_facts(method: str) -> dict[str, str]:
    """A digest of the file of a method from elsewhere. For our own, version and commit tell the same."""
    module = METHODS.load(method).__module__
    if module.startswith("softmask."):
        return {}
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed in by hand
        return {}
    return {"code": hashlib.sha256(source.encode()).hexdigest()[:16]}


def warn_if_code_changed(known: StoredRun) -> None:
    method = known.config.method
    now = code_facts(method).get("code")
    if now is not None and any(event.get("code", now) != now for event in known.events("started")):
        warnings.warn(
            f"the code of {method} has changed since some of its runs: finished runs stay as they are, the others "
            "continue with the new code; delete them, or use another store, to keep old and new results apart",
            stacklevel=3,
        )
