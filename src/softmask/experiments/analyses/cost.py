"""What a run costs: time, throughput, memory, disk, and how they grow with the number of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from softmask.experiments.analyses.grouping import Group, finished_groups
from softmask.experiments.analyses.statistics import slope
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.runs.store import StoredRun

MEGABYTE = 1e6


def cost(runs: Iterable[StoredRun]) -> Table:
    """Time per task for learning and for what follows it (importance, masks, memory), and what else is used up."""
    return Table(
        "Cost",
        (
            *("sequence", "method", "training", "changed", "seeds"),
            *("hours", "learning, s/task", "task end, s/task", "task end, first s", "task end, last s"),
            *("learning grows, %/task", "task end grows, s/task", "images/s", "memory, MB", "disk, MB"),
        ),
        [_row(group) for group in finished_groups(runs)],
        (
            "Wall-clock time on the machine that ran it, so only runs made side by side compare. Task end: importance, "
            "masks or memory after a task. Growth is a slope over the task number. Images a second count training "
            "images; memory is the process's peak during the run; disk is what the run's folder holds now.",
        ),
        labels=2,
    )


def times(run: StoredRun, name: str) -> list[float]:
    """`learn_seconds` or `end_seconds` of every task."""
    return [float(event[name]) for event in run.events("task") if name in event]


def throughput(run: StoredRun) -> float | None:
    """Training images a second, over all epochs. None in runs that did not count their images."""
    epochs: dict[int, int] = {}
    for event in run.events("epoch"):
        epochs[event["task"]] = epochs.get(event["task"], 0) + 1
    tasks = [event for event in run.events("task") if "images" in event]
    seconds = sum(event["learn_seconds"] for event in tasks)
    return sum(event["images"] * epochs.get(event["task"], 0) for event in tasks) / seconds if seconds else None


def peak_memory(run: StoredRun) -> float | None:
    peaks = [event["peak_memory"] for event in run.events("task") if event.get("peak_memory")]
    return max(peaks) / MEGABYTE if peaks else None


def disk(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / MEGABYTE


def _row(group: Group) -> tuple[Cell, ...]:
    learning = [times(run, "learn_seconds") for run in group.runs]
    ends = [times(run, "end_seconds") for run in group.runs]
    both = [values for values in zip(learning, ends, strict=True) if values[0] and values[1]]
    return (
        *(group.sequence, group.title, group.training, group.changed, len(group.runs)),
        Value.of([(sum(learn) + sum(end)) / 3600 for learn, end in both], digits=2),
        Value.of([_mean(learn) for learn, _ in both]),
        Value.of([_mean(end) for _, end in both], digits=2),
        Value.of([end[0] for _, end in both], digits=2),
        Value.of([end[-1] for _, end in both], digits=2),
        Value.of([100 * rise / _mean(learn) for learn, _ in both if (rise := slope(learn)) is not None], signed=True),
        Value.of([rise for _, end in both if (rise := slope(end)) is not None], digits=2, signed=True),
        Value.of([speed for run in group.runs if (speed := throughput(run)) is not None], digits=0),
        Value.of([peak for run in group.runs if (peak := peak_memory(run)) is not None], digits=0),
        Value.of([disk(run.path) for run in group.runs]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
