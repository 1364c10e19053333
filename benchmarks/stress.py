"""Every method but CAT learns 100 generated tasks laid out as I-100: time, memory and disk against the forecast."""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from softmask.learning.catalogue import METHODS
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from softmask.runs.config import RunConfig, make_config
from softmask.runs.forecast import forecast
from softmask.runs.run import load, run
from softmask.runs.store import Store, StoredRun
from softmask.sequences import sequence, sequence_from

from .timing import RESULTS, Report

NAME, TASKS, CLASSES = "generated-100", 100, 10
COUNTS = {"train": 640, "validation": 64, "test": 50}
LEFT_OUT = ("cat",)  # its time grows with the square of the number of tasks, as in the paper
FACTOR = 1.5


@sequence(NAME, tasks=TASKS, classes=CLASSES, description="100 generated tasks in the layout of I-100")
def generated(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
    """Ten classes of 32 x 32 colour pictures a task: a pattern for each class, and noise."""
    generator = torch.Generator().manual_seed(seeds.order)

    def part(patterns: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % CLASSES
        noise = torch.randint(0, 128, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return patterns[labels] + noise, labels

    made = []
    for _ in range(tasks):
        patterns = torch.randint(0, 128, (CLASSES, 3, 32, 32), generator=generator, dtype=torch.uint8)
        made.append(tuple(part(patterns, count) for count in COUNTS.values()))
    return sequence_from(NAME, made)  # type: ignore[arg-type]


def stress_config(method: str, tasks: int | None = None) -> RunConfig:
    changes = {"network.width": 1 / 16, "training.epochs": 1, "training.joint_epochs": 1}
    return make_config(method, NAME, preset="short", tasks=tasks, changes=changes)


def one_method(method: str, tasks: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: what was foretold and what it took."""
    torch.set_num_threads(1)
    config = stress_config(method, tasks)
    expected = forecast(config, load(config, None))
    disk, start = 0, 0.0

    def weigh(event: dict[str, Any]) -> None:
        nonlocal disk, start
        if event["kind"] == "started":  # the pictures are there: generating them is no part of the run
            start = time.perf_counter()
        if event["kind"] in ("epoch", "task"):
            disk = max(disk, folder_bytes(folder))

    done = run(config, Store(folder), listeners=[weigh])
    return {
        "method": method,
        "seconds": (expected.seconds, time.perf_counter() - start),
        "memory": (expected.memory_bytes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss),
        "disk": (expected.disk_bytes, disk),
        "task_seconds": [event["learn_seconds"] + event["end_seconds"] for event in done.events("task")],
        "finite": finite(done),
    }


def finite(done: StoredRun) -> bool:
    return all(math.isfinite(event["train_loss"]) for event in done.events("epoch"))


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """How the time of a task grows from the first to the last."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    for each in found:
        axes.plot(range(1, 1 + len(each["task_seconds"])), each["task_seconds"], label=each["method"], linewidth=1)
    axes.set(xlabel="task", ylabel="seconds to learn and end the task", yscale="log")
    axes.legend(ncols=3, fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def main(tasks: int = TASKS) -> None:
    methods = [name for name in METHODS.names() if name not in LEFT_OUT]
    found = []
    for method in methods:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.stress", method, str(tasks), folder]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found.append(json.loads(told.splitlines()[-1]))
    rows: list[tuple[Any, ...]] = []
    for each in found:
        ratios = {what: each[what][1] / each[what][0] for what in ("seconds", "memory", "disk")}
        held = all(1 / FACTOR <= ratio <= FACTOR for ratio in ratios.values())
        told = [f"{each['seconds'][1]:.0f} s"] + [f"{each[what][1] / 2**20:,.0f} MiB" for what in ("memory", "disk")]
        cells = [f"{value} ({ratio:.2f} x)" for value, ratio in zip(told, ratios.values(), strict=True)]
        rows.append(
            (each["method"], *cells, "finite" if each["finite"] else "NOT FINITE", "held" if held else "MISSED")
        )
    columns = ("method", "time (of the forecast)", "memory", "disk", "losses", f"forecast within {FACTOR:g} x")
    RESULTS.mkdir(exist_ok=True)
    draw(found, RESULTS / "stress.svg")
    Report("stress", columns, rows, [f"{tasks} tasks, width 1/16, one epoch each; growth in stress.svg"]).publish(
        {each["method"]: each for each in found}
    )


if __name__ == "__main__":
    if len(sys.argv) > 3:
        print(json.dumps(one_method(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
    else:
        main(*(int(word) for word in sys.argv[1:]))
