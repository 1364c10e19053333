"""Every method but CAT learns 100 generated tasks laid out as I-100: time, memory and disk against the forecast."""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import softmask.experiments.runs.run_writer as run_writer
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.dry_run import forecast
from softmask.experiments.runs.run import load, run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import sequence, sequence_from
from softmask.learning.registry import METHODS
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence

from .timing import RESULTS, Report

NAME, TASKS, CLASSES = "generated-100", 100, 10
COUNTS = {"train": 640, "validation": 64, "test": 50}
LEFT_OUT = ("cat",)  # its time grows with the square of the number of tasks, as in the paper
FACTOR = 1.5


@sequence(NAME, tasks=TASKS, classes=CLASSES, description="100 generated tasks in the layout of I-100")
def generated(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
    """Ten classes of 32 x 32 colour images a task: a pattern for each class, and noise."""
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


def foretold(method: str, tasks: int) -> dict[str, float]:
    """In a process of its own, as `--dry-run` is: what it leaves in memory is no part of the run."""
    torch.set_num_threads(1)
    config = stress_config(method, tasks)
    expected = forecast(config, load(config, None))
    return {"seconds": expected.seconds, "memory": expected.memory_bytes, "disk": expected.disk_bytes}


def taken(method: str, tasks: int, folder: Path) -> dict[str, Any]:
    """In a process of its own: what the run took."""
    torch.set_num_threads(1)
    config = stress_config(method, tasks)
    start, grown = 0.0, Growth()

    def weigh(event: dict[str, Any]) -> None:
        nonlocal start
        if event["kind"] == "started":  # the images are there: generating them is no part of the run
            start = time.perf_counter()
        if event["kind"] == "task":
            grown.note(folder_bytes(folder), event["learn_seconds"] + event["end_seconds"])

    with weighed_when_saved(grown, folder):
        done = run(config, Store(folder), listeners=[weigh])
    return {
        "seconds": time.perf_counter() - start,
        "memory": peak_memory(),
        "disk": grown.disk_peak,
        "by_task": {"seconds": grown.seconds, "memory": grown.memory, "disk": grown.disk},
        "finite": finite(done),
    }


@dataclass
class Growth:
    """The cost of a run, one number for each task that it has learned."""

    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    disk_peak: int = 0

    def note(self, disk: int, seconds: float) -> None:
        self.seconds.append(seconds)
        self.memory.append(peak_memory())
        self.disk.append(disk)
        self.disk_peak = max(self.disk_peak, disk)


@contextmanager
def weighed_when_saved(grown: Growth, folder: Path) -> Iterator[None]:
    """The old file goes only when the new file is whole: the folder is weighed in between."""
    write = run_writer.write_state

    def write_and_weigh(path: Path, state: Any) -> None:
        write(path, state)
        grown.disk_peak = max(grown.disk_peak, folder_bytes(folder))

    run_writer.write_state = write_and_weigh
    try:
        yield
    finally:
        run_writer.write_state = write


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def finite(done: StoredRun) -> bool:
    return all(math.isfinite(event["train_loss"]) for event in done.events("epoch"))


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PANELS = {
    "seconds": ("seconds to learn and end the task", 1.0),
    "memory": ("peak of memory up to this task, MiB", 2.0**20),
    "disk": ("run folder on disk, MiB", 2.0**20),
}


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """How the time of a task, the memory and the disk of a run grow from the first task to the last."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(14, 5))
    for axes, (what, (label, unit)) in zip(panels, PANELS.items(), strict=True):
        for number, each in enumerate(found):
            values = [value / unit for value in each["by_task"][what]]
            style = ("-", "--", ":")[number // 10]  # ten colours are told apart, no more
            axes.plot(range(1, 1 + len(values)), values, style, label=each["method"], linewidth=1)
        axes.set(xlabel="task", ylabel=label, yscale="log")
    figure.legend(*panels[0].get_legend_handles_labels(), ncols=10, fontsize=8, loc="lower center")
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path)
    plt.close(figure)


def growth(each: dict[str, Any]) -> str:
    """Time, memory and disk at the last task, as multiples of those at the tenth; time as medians of nine tasks."""
    values = each["by_task"]
    if len(values["seconds"]) < 20:
        return "too few tasks"
    times = statistics.median(values["seconds"][-9:]) / statistics.median(values["seconds"][5:14])
    return " / ".join(
        f"{number:.2f}" for number in (times, *(values[w][-1] / values[w][9] for w in ("memory", "disk")))
    )


def row(each: dict[str, Any]) -> tuple[Any, ...]:
    ratios = {what: each[what][1] / each[what][0] for what in ("seconds", "memory", "disk")}
    held = all(1 / FACTOR <= ratio <= FACTOR for ratio in ratios.values())
    told = [f"{each['seconds'][1]:.0f} s"] + [f"{each[what][1] / 2**20:,.0f} MiB" for what in ("memory", "disk")]
    cells = [f"{value} ({ratio:.2f} x)" for value, ratio in zip(told, ratios.values(), strict=True)]
    finite_losses = "finite" if each["finite"] else "NOT FINITE"
    return (each["method"], *cells, growth(each), finite_losses, "held" if held else "MISSED")


def one_method(method: str, tasks: int) -> dict[str, Any]:
    """The estimate, and the measured cost."""
    expected = in_a_process("foretold", method, str(tasks))
    with tempfile.TemporaryDirectory() as folder:
        found = in_a_process("taken", method, str(tasks), folder)
    return {"method": method, **found, **{what: (told, found[what]) for what, told in expected.items()}}


def in_a_process(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.stress", *words]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told.splitlines()[-1]))


def measured_before() -> dict[str, dict[str, Any]]:
    """The content of the file: all methods take more than an hour of one core."""
    file = RESULTS / "stress.json"
    content = json.loads(file.read_text()) if file.exists() else {}
    return {name: content[name] for name in METHODS.names() if name in content}


def publish(found: list[dict[str, Any]]) -> None:
    columns = (
        *("method", "time (of the forecast)", "memory", "disk"),
        *("last task against the tenth: time / memory / disk", "losses", f"forecast within {FACTOR:g} x"),
    )
    RESULTS.mkdir(exist_ok=True)
    draw(found, RESULTS / "stress.svg")
    notes = [f"{TASKS} tasks, width 1/16, one epoch each; growth in stress.svg"]
    Report("stress", columns, [row(each) for each in found], notes).publish({each["method"]: each for each in found})


def main(*wanted: str) -> None:
    """All methods, or those that are named. Each is published at once; of the others stays what was measured before."""
    for method in wanted or [name for name in METHODS.names() if name not in LEFT_OUT]:
        new = {method: one_method(method, TASKS)}
        known = measured_before() | new  # read again: another process may have measured others
        publish([known[name] for name in METHODS.names() if name in known])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["foretold", method, tasks]:
            print(json.dumps(foretold(method, int(tasks))))
        case ["taken", method, tasks, folder]:
            print(json.dumps(taken(method, int(tasks), Path(folder))))
        case wanted:
            main(*wanted)
