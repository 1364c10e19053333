"""Changes from task to task: forward transfer with its slope, and the whole accuracy matrix."""

from __future__ import annotations

from collections.abc import Iterable

from softmask.experiments.analyses.accuracy import References, accuracy_alone, references
from softmask.experiments.analyses.comparisons import INTERVALS
from softmask.experiments.analyses.grouping import LABELS, REFERENCE, Group, gathered
from softmask.experiments.analyses.table import Row, Table, Value, slope
from softmask.experiments.runs.store import StoredRun


def transfer_of(run: StoredRun, alone: References) -> list[float] | None:
    """Forward transfer of every task, in order. None without the reference, or where tasks were learned jointly."""
    matrix, by_position = run.accuracies(), accuracy_alone(run, alone)
    tasks = sorted(matrix[max(matrix)])
    if run.config.method == REFERENCE or by_position is None:
        return None
    if any(task not in matrix or task not in by_position for task in tasks):
        return None
    return [matrix[task][task] - by_position[task] for task in tasks]


def group_curves(group: Group, alone: References) -> list[list[float]]:
    """One curve for each seed that has its reference."""
    return [curve for run in group.runs if (curve := transfer_of(run, alone)) is not None]


def transfer_curve(runs: Iterable[StoredRun]) -> Table:
    """Forward transfer of each task, and how it changes from one task to the next."""
    runs = gathered(runs)
    alone = references(runs)
    found = [(group, curves) for group in runs.groups if (curves := group_curves(group, alone))]
    longest = max((len(curves[0]) for _, curves in found), default=0)
    rows: list[Row] = []
    for group, curves in found:
        cells = [Value.of(values, signed=True) for values in zip(*curves, strict=True)]
        padding = [None] * (longest - len(cells))
        slopes = Value.with_interval(map(slope, curves), digits=2)
        rows.append((*group.label, len(curves), slopes, *cells, *padding))
    note = (
        "a[j][j] - one[j]; slope: percentage points from one task to the next, by least squares, averaged over seeds, "
        f"with {INTERVALS}."
    )
    columns = (*LABELS, "seeds", "slope", *map(str, range(1, longest + 1)))
    return Table("Forward transfer by task, in percentage points", columns, rows, [note], labels=2)


def accuracy_matrix(runs: Iterable[StoredRun]) -> Table:
    """Accuracy on every task after every task, averaged over seeds."""
    groups = gathered(runs).groups
    longest = max((group.tasks for group in groups), default=0)
    rows = [
        (*group.label, after + 1, *map(row.get, range(longest)))
        for group in groups
        for after, row in mean_matrix(group).items()
    ]
    return Table(
        "Accuracy on each task after each task, in percent",
        (*LABELS, "after", *(f"task {i}" for i in range(1, longest + 1))),
        rows,
        ["a[i][j]: accuracy on task j after task i; seeds are averaged by position."],
        labels=2,
    )


def mean_matrix(group: Group) -> dict[int, dict[int, float]]:
    """By position: other seeds have other tasks there."""
    matrices = [run.accuracies() for run in group.runs]
    return {
        after: {task: sum(m[after][task] for m in matrices) / len(matrices) for task in row}
        for after, row in matrices[0].items()
        if all(row.keys() <= m.get(after, {}).keys() for m in matrices)
    }
