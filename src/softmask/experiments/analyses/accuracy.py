"""Accuracy, forward and backward transfer of stored runs, beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from softmask.experiments.analyses.grouping import (
    REFERENCE,
    Group,
    changes,
    finished_groups,
    gathered,
    setting,
    training_name,
)
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.metrics import FORMULAS, average_accuracy, backward_transfer, forward_transfer
from softmask.experiments.paper.published import paper_value
from softmask.experiments.runs.store import StoredRun

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
    notes.append(
        "FWT compares with ONE, matched by task, from runs with the same seeds, network and training; a rate "
        "that stands among a method's own settings is its own."
    )
    return Table(
        caption="Accuracy and transfer on the test sets, in percent, beside the paper's",
        columns=(
            *("sequence", "method", "training", "changed", "seeds"),
            *("ACC", "FWT", "BWT", "paper ACC", "paper FWT", "paper BWT"),
        ),
        rows=[_row(group, alone, runs.lost(group)) for group in finished_groups(runs)],
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


def paper_measure(measure: str, title: str, sequence: str) -> float | None:
    """What the paper has; accuracies of the ablations stand in a table of their own."""
    found = paper_value(PAPER_TABLES[measure], title, sequence)
    return paper_value("ablation_accuracy", title, sequence) if found is None and measure == "ACC" else found


def over_seeds(measured: Sequence[Measures], name: str, lost: int, *, signed: bool = False) -> Value | None:
    """The mean over the seeds that have the number; a footnote says which have not."""
    value = Value.of([known for each in measured if (known := each[name]) is not None], signed=signed)
    if value is None:
        return None
    notes = [f"{len(measured)} of {len(measured) + lost} seeds: the others failed."] if lost else []
    if value.count < len(measured):
        notes.append(f"{value.count} of {len(measured)} seeds: the others have no run of ONE to compare with.")
    return replace(value, footnotes=tuple(notes), partial=bool(notes))


def _row(group: Group, alone: References, lost: int) -> tuple[Cell, ...]:
    measured = [measures(run, alone) for run in group.runs]
    ours = [over_seeds(measured, name, lost) for name in FORMULAS]
    paper = [paper_measure(name, group.title, group.config.sequence) for name in FORMULAS]
    beside = paper if group.whole else [None] * len(paper)
    return (group.sequence, group.title, group.training, group.changed, len(group.runs), *ours, *beside)
