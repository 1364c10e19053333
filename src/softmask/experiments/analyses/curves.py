"""What changes from task to task: forward transfer with its slope, and the whole accuracy matrix."""

from __future__ import annotations

from collections.abc import Iterable

from softmask.experiments.analyses.accuracy import References, reached_alone, references
from softmask.experiments.analyses.grouping import REFERENCE, Group, finished_groups, gathered
from softmask.experiments.analyses.statistics import slope, with_interval
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.runs.store import StoredRun


def transfer_of(run: StoredRun, alone: References) -> list[float] | None:
    """Forward transfer of every task, in order. None without the reference, or where tasks were learned jointly."""
    matrix, reached = run.accuracies(), reached_alone(run, alone)
    tasks = sorted(matrix[max(matrix)])
    if run.config.method == REFERENCE or reached is None:
        return None
    if any(task not in matrix or task not in reached for task in tasks):
        return None
    return [matrix[task][task] - reached[task] for task in tasks]


def transfer_curve(runs: Iterable[StoredRun]) -> Table:
    """Forward transfer of each task, and how it changes from one task to the next."""
    runs = gathered(runs)
    alone = references(runs)
    found = [(group, curves) for group in finished_groups(runs) if (curves := group_curves(group, alone))]
    longest = max((len(curves[0]) for _, curves in found), default=0)
    rows: list[tuple[Cell, ...]] = []
    for group, curves in found:
        slopes = [each for curve in curves if (each := slope(curve)) is not None]
        cells = [Value.of(list(values), signed=True) for values in zip(*curves, strict=True)]
        padding = [None] * (longest - len(cells))
        label = (group.sequence, group.title, group.training, group.changed, len(curves))
        rows.append((*label, with_interval(slopes, digits=2), *cells, *padding))
    return Table(
        "Forward transfer by task, in percentage points",
        ("sequence", "method", "training", "changed", "seeds", "slope", *map(str, range(1, longest + 1))),
        rows,
        (
            "a[j][j] - one[j]; slope: points from one task to the next, by least squares, averaged over seeds with its "
            "95 % interval from two seeds on.",
        ),
        labels=2,
    )


def group_curves(group: Group, alone: References) -> list[list[float]]:
    """One curve for each seed that has its reference."""
    return [curve for run in group.runs if (curve := transfer_of(run, alone)) is not None]


def accuracy_matrix(runs: Iterable[StoredRun]) -> Table:
    """Accuracy on every task after every task, averaged over seeds."""
    groups = finished_groups(runs)
    longest = max((group.tasks for group in groups), default=0)
    rows: list[tuple[Cell, ...]] = []
    for group in groups:
        for after, row in mean_matrix(group).items():
            cells = [row.get(task) for task in range(longest)]
            rows.append((group.sequence, group.title, group.training, group.changed, after + 1, *cells))
    return Table(
        "Accuracy on each task after each task, in percent",
        ("sequence", "method", "training", "changed", "after", *(f"task {i}" for i in range(1, longest + 1))),
        rows,
        ("a[i][j]: row i says what was known after task i; seeds are averaged place by place.",),
        labels=2,
    )


def mean_matrix(group: Group) -> dict[int, dict[int, float]]:
    """Place by place: with other seeds other tasks stand there."""
    matrices = [run.accuracies() for run in group.runs]
    return {
        after: {task: sum(m[after][task] for m in matrices) / len(matrices) for task in row}
        for after, row in matrices[0].items()
        if all(row.keys() <= m.get(after, {}).keys() for m in matrices)
    }
