"""Cost of a run: time, throughput, memory, disk, and the number of learnable parameters."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from softmask.experiments.analyses.grouping import LABELS, Group, gathered
from softmask.experiments.analyses.table import Row, Table, Value, slope
from softmask.experiments.paper import paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun
from softmask.learning.registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.methods.cat import CAT

MEGABYTE = 1e6
COLUMNS = (
    *("hours", "learning, s/task", "task end, s/task", "task end, first s", "task end, last s"),
    *("learning grows, %/task", "task end grows, s/task", "images/s", "memory, MB", "disk, MB"),
)


def cost(runs: Iterable[StoredRun]) -> Table:
    """Time per task for learning and for the end of a task (importance, masks, replay buffer), memory and disk."""
    note = (
        "Wall-clock time on the machine that ran it, so only runs made side by side compare. Task end: importance, "
        "masks or replay buffer after a task. Growth is a slope over the task number. Images per second count training "
        "images; memory is the peak of the process during the run; disk is the present size of the run's folder."
    )
    rows = [_row(group) for group in gathered(runs).groups]
    return Table("Cost", (*LABELS, "seeds", *COLUMNS), rows, [note], labels=2)


def _row(group: Group) -> Row:
    learning = [times(run, "learn_seconds") for run in group.runs]
    ends = [times(run, "end_seconds") for run in group.runs]
    both = [values for values in zip(learning, ends, strict=True) if values[0] and values[1]]
    growth = ((slope(learn), float(np.mean(learn))) for learn, _ in both)
    return (
        *(*group.label, len(group.runs)),
        Value.of(((sum(learn) + sum(end)) / 3600 for learn, end in both), digits=2),
        Value.of(float(np.mean(learn)) for learn, _ in both),
        Value.of((float(np.mean(end)) for _, end in both), digits=2),
        Value.of((end[0] for _, end in both), digits=2),
        Value.of((end[-1] for _, end in both), digits=2),
        Value.of((100 * rise / mean for rise, mean in growth if rise is not None), signed=True),
        Value.of((slope(end) for _, end in both), digits=2, signed=True),
        group.over_seeds(throughput, digits=0),
        group.over_seeds(peak_memory, digits=0),
        group.over_seeds(disk),
    )


def times(run: StoredRun, name: str) -> list[float]:
    """`learn_seconds` or `end_seconds` of every task."""
    return [float(event[name]) for event in run.events("task") if name in event]


def throughput(run: StoredRun) -> float | None:
    """Training images per second, over all epochs. None for runs that did not count their images."""
    epochs = Counter(event["task"] for event in run.events("epoch"))
    tasks = [event for event in run.events("task") if "images" in event]
    seconds = sum(event["learn_seconds"] for event in tasks)
    return sum(event["images"] * epochs[event["task"]] for event in tasks) / seconds if seconds else None


def peak_memory(run: StoredRun) -> float | None:
    peaks = [event["peak_memory"] for event in run.events("task") if event.get("peak_memory")]
    return max(peaks) / MEGABYTE if peaks else None


def disk(run: StoredRun) -> float:
    return sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file()) / MEGABYTE


COLOUR, GREY = (3, 32, 32), (1, 28, 28)
HANDWRITTEN = ("FE-10", "FE-20")
REASONS = {
    "ONE": "one network, as the paper counts, although there is one for each task.",
    "PGN": "the columns' width follows a rule that fits all nine cells; the paper does not say how it chose it.",
    "PathNet": "the modules' width was solved for each cell: that it agrees says nothing about the paper's choice.",
    "WSN": "weights without biases and without scores. Where the paper is lower it may count only weights in use.",
    "SupSup": "one score for each weight and task, heads included.",
    "CAT": "all modules of its authors' code but one layer that would not fit; some of these are never used.",
}


def network_size(methods: Collection[str] = ()) -> Table:
    """Two rows for each method, or each of those named: our count, and the paper's in millions, if it has one."""
    scenarios = {name: paper_scenario(name) for name in paper_tables()["sequences"]}
    rows: list[Row] = []
    notes = ["Counted at full width over all tasks, heads included; agreement is judged at 0.1 million."]
    for name in (name for name in METHODS.names() if not methods or name in methods):
        method = METHODS.load(name)
        try:
            counts = {sequence: learnable(name, sequence) for sequence in scenarios}
        except Exception as error:
            if method.__module__.startswith("softmask."):
                raise
            # A method of another package whose `build` reads values cannot be built on shapes alone.
            notes.append(f"{method.title} cannot be counted: {type(error).__name__}: {error}")
            continue
        rows.append((method.title, "parameters", *counts.values()))
        if method.title in paper_tables()["network_size_millions"]:
            paper = {sequence: paper_value("network_size_millions", method.title, sequence) for sequence in scenarios}
            rows.append((method.title, "paper, millions", *paper.values()))
            notes += _remarks(method.title, [s for s in scenarios if not agrees(counts[s], paper[s])])
    if not methods or "cat" in methods:
        used = ", ".join(f"{name} {CAT.used_parameters(scenario):,}" for name, scenario in scenarios.items())
        notes.append(f"CAT without modules that are never used: {used}.")
    return Table("Learnable parameters", ("method", "counted", *scenarios), rows, notes)


@functools.cache
def learnable(method: str, sequence: str) -> int:
    """Number of learnable parameters of a method on a sequence of the paper; it is built to count them."""
    return METHODS.load(method).learnable(paper_scenario(sequence))


@functools.cache
def paper_scenario(sequence: str) -> Scenario:
    """Input shape and classes of a sequence of the paper, without its data."""
    facts = paper_tables()["sequences"][sequence]
    return Scenario(GREY if sequence in HANDWRITTEN else COLOUR, (facts["classes_per_task"],) * facts["tasks"])


def agrees(count: int, millions: float | None) -> bool:
    """Whether the count rounds to the printed number; True where the paper prints none."""
    return millions is None or f"{count / 1e6:.1f}" == f"{millions:.1f}"


def _remarks(title: str, different: list[str]) -> list[str]:
    reason = REASONS.get(title, "")
    if different:
        return [f"{title} differs from the paper on {', '.join(different)}: {reason or 'no reason known.'}"]
    return [f"{title}: {reason}"] if reason else []
