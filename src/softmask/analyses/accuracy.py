"""Accuracy, forward and backward transfer of stored runs, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from softmask.analyses.grouping import REFERENCE, Group, changes, finished_groups, gathered, setting, training_name
from softmask.analyses.table import Cell, Table, Value
from softmask.metrics import FORMULAS, average_accuracy, backward_transfer, forward_transfer
from softmask.paper import paper_value
from softmask.runs.store import StoredRun

__all__ = ["REFERENCE", "Measures", "accuracy", "changes", "references", "training_name", "transfer"]

PAPER_TABLES = {"ACC": "accuracy", "FWT": "forward_transfer", "BWT": "backward_transfer"}
Measures = dict[str, float | None]
References = Mapping[str, Mapping[str, float]]
"""What each task reached alone, by its name, for each way to run."""


def accuracy(runs: Iterable[StoredRun]) -> Table:
    """One row for each method, sequence and way of training; seeds are averaged."""
    runs = gathered(runs)
    alone = references(runs)
    notes = [f"{name} = {formula}" for name, formula in FORMULAS.items()]
    notes.append("FWT compares with ONE, matched by task, from runs with the same seeds, network and training.")
    return Table(
        caption="Accuracy and transfer on the test sets, in percent, beside the paper's",
        columns=(
            *("sequence", "method", "training", "changed", "seeds"),
            *("ACC", "FWT", "BWT", "paper ACC", "paper FWT", "paper BWT"),
        ),
        rows=[_row(group, alone) for group in finished_groups(runs)],
        notes=tuple(notes),
        labels=2,
    )


def transfer(run: StoredRun, runs: Iterable[StoredRun]) -> Measures:
    """ACC, FWT and BWT of one run; FWT where the store has the matching run of ONE."""
    return measures(run, references(other for other in runs if other.config.sequence == run.config.sequence))


def references(runs: Iterable[StoredRun]) -> dict[str, dict[str, float]]:
    """The finished runs of ONE, by what a run must share with its reference."""
    return {setting(run.config): own_accuracies(run) for run in runs if run.config.method == REFERENCE and run.finished}


def own_accuracies(run: StoredRun) -> dict[str, float]:
    """What each task reached just after it was learned, by the task's name."""
    matrix = run.accuracies()
    return {name: matrix[task][task] for task, name in run.task_names().items() if task in matrix.get(task, {})}


def reached_alone(run: StoredRun, alone: References) -> dict[int, float] | None:
    """What ONE reached on the run's tasks, by their place. None where the store has no such run."""
    by_name = alone.get(setting(run.config))
    if by_name is None:
        return None
    return {task: by_name[name] for task, name in run.task_names().items() if name in by_name}


def measures(run: StoredRun, alone: References) -> Measures:
    matrix = run.accuracies()
    found: Measures = {"ACC": average_accuracy(matrix), "FWT": None, "BWT": None}
    if run.config.method == REFERENCE:
        return found
    found["BWT"] = backward_transfer(matrix)
    by_place = reached_alone(run, alone)
    if by_place is not None:
        found["FWT"] = forward_transfer(matrix, by_place)
    return found


def _row(group: Group, alone: References) -> tuple[Cell, ...]:
    measured = [measures(run, alone) for run in group.runs]
    ours = [Value.of([value for each in measured if (value := each[name]) is not None]) for name in FORMULAS]
    paper = [paper_value(PAPER_TABLES[name], group.title, group.config.sequence) for name in FORMULAS]
    beside = paper if group.whole else [None] * len(paper)
    return (group.sequence, group.title, group.training, group.changed, len(group.runs), *ours, *beside)
