"""A store of 10,000 runs: opening it, `list runs` and `grid --dry-run`, the first time and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.store import Store
from softmask.experiments.runs.stored_run import FORMAT

from .timing import Report

METHODS = ("ncl", "one", "spg", "ewc", "hat", "wsn", "si", "tag", "ucl", "a-gem")
RUNS, TASKS, LIMIT = 10_000, 5, 2.0
EMPTY = "softmask list runs (a process), empty store"


def fill(root: Path, count: int) -> list[RunConfig]:
    """Finished runs as `run` writes them, with empty checkpoints."""
    configs = [
        make_config(METHODS[number % len(METHODS)], "D-5", preset="short", seed=1 + number // len(METHODS))
        for number in range(count)
    ]
    for config in configs:
        folder = root / config.id()
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / f"{TASKS - 1:03}.safetensors").touch()
        (folder / "config.json").write_text(json.dumps({"format": FORMAT, "config": config.to_dict()}, indent=1))
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events()))
    return configs


def events() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"kind": "started", "stages_done": 0}]
    for task in range(TASKS):
        epochs = [{"kind": "epoch", "task": task, "epoch": epoch, "val_loss": 0.5} for epoch in range(10)]
        found += [*epochs, {"kind": "task", "task": task, "ids": [task], "name": f"task {task}", "facts": {}}]
        found += [
            {"kind": "accuracy", "after": task, "task": old, "validation": 0.9, "test": 0.8} for old in range(task + 1)
        ]
    return [*found, {"kind": "finished", "weights": "0" * 64}]


def command(*words: str) -> float:
    """Seconds of a whole process, the start of Python and torch included."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "softmask", *words], check=True, capture_output=True)
    return time.perf_counter() - start


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(root: Path, count: int) -> dict[str, list[float]]:
    configs = fill(root, count)
    seeds = f"1-{1 + (count - 1) // len(METHODS)}"
    grid = ["grid", "--methods", ",".join(METHODS), "--sequences", "D-5", "--seeds", seeds, "--preset", "short"]
    calls: dict[str, Callable[[], Any]] = {
        "opening: every run of Store.runs()": lambda: [run.finished for run in Store(root).runs()],
        "finding one run": lambda: Store(root).find(configs[0]),
        "softmask list runs (a process)": lambda: command("list", "runs", "--store", str(root)),
        "softmask grid --dry-run (a process)": lambda: command(*grid, "--dry-run", "--store", str(root)),
        EMPTY: lambda: command("list", "runs", "--store", str(root.parent / "empty")),
    }
    return {name: [timed(call) for _ in range(3)] for name, call in calls.items()}


def main(count: int = RUNS) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOFTMASK_CACHE"] = str(Path(folder) / "cache")
        found = measure(Path(folder) / "store", count)
    start = min(found[EMPTY])  # Python, torch and the methods are loaded whatever the store holds
    rows: list[tuple[Any, ...]] = []
    for name, seconds in found.items():
        own = min(seconds) - (start if "process" in name else 0)
        verdict = "-" if name == EMPTY else f"{'below' if own < LIMIT else 'ABOVE'} {LIMIT:g} s"
        rows.append((name, f"{seconds[0]:.2f} s", f"{min(seconds):.2f} s", f"{own:.2f} s", verdict))
    columns = (
        f"with {count:,} stored runs",
        "the first time",
        "again",
        "again, without loading Python and torch",
        "limit",
    )
    Report("stores", columns, rows, []).publish(found)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
