"""A run that takes a fraction of a second, and what of a run must not depend on interruptions."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.store import Store, StoredRun

TINY = {"network.width": 0.0625, "epochs": 2}
# Times and memory differ between any two runs, and so does the digest of all lines.
TIMES = ("seconds", "learn_seconds", "end_seconds", "peak_memory", "digest")


def tiny_config(
    method: str = "spg", *, tasks: int = 2, seed: int = 1, changes: Mapping[str, Any] | None = None
) -> RunConfig:
    return make_config(method, "D-5", preset="short", tasks=tasks, seed=seed, changes={**TINY, **(changes or {})})


def tiny_command(method: str = "spg", *, store: Path, tasks: int = 2, epochs: int = 2) -> list[str]:
    """The same run as a command of its own process."""
    options = ["--method", method, "--sequence", "D-5", "--preset", "short", "--tasks", str(tasks)]
    options += ["--set", "width=0.0625", "--set", f"epochs={epochs}", "--store", str(store)]
    return [sys.executable, "-m", "softmask", "run", *options]


def environment() -> dict[str, str]:
    """Without what the caller's shell may have set for softmask."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SOFTMASK_")}


def outcome(run: StoredRun) -> list[dict[str, Any]]:
    """Everything that must be equal, the digest of the weights among it, however often a run was interrupted."""
    events = [event for event in run.events() if event["kind"] not in ("started", "failed")]
    return [{key: value for key, value in event.items() if key not in TIMES} for event in events]


def only_run(store: Path) -> StoredRun:
    (run,) = Store(store).runs()
    return run


def files_below(folder: Path) -> Sequence[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
