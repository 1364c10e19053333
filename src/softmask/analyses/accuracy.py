"""Accuracy, forward and backward transfer of stored runs, beside the paper's numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping

from softmask.analyses.table import Cell, Table, Value
from softmask.learning.catalogue import METHODS
from softmask.learning.training import PRESETS, Training
from softmask.metrics import FORMULAS, average_accuracy, backward_transfer, forward_transfer
from softmask.paper import paper_value
from softmask.runs.config import RunConfig, make_config
from softmask.runs.store import StoredRun

REFERENCE = "one"


def accuracy(runs: Iterable[StoredRun]) -> Table:
    """One row for each method, sequence and way of training; seeds are averaged."""
    finished = [run for run in runs if run.finished]
    alone = {_setting(run.config): _own_accuracies(run) for run in finished if run.config.method == REFERENCE}
    groups: dict[str, list[StoredRun]] = {}
    for run in finished:
        groups.setdefault(_without_seeds(run.config), []).append(run)
    rows = [_row(members, alone) for members in groups.values()]
    notes = [f"{name} = {formula}" for name, formula in FORMULAS.items()]
    notes.append("FWT compares with ONE, matched by task, from runs with the same seeds, network and training.")
    return Table(
        caption="Accuracy and transfer on the test sets, in percent, beside the paper's",
        columns=(
            *("sequence", "method", "training", "changed", "seeds"),
            *("ACC", "FWT", "BWT", "paper ACC", "paper FWT", "paper BWT"),
        ),
        rows=sorted(rows, key=lambda row: tuple(str(cell) for cell in row[:4])),
        notes=tuple(notes),
    )


def transfer(run: StoredRun, runs: Iterable[StoredRun]) -> dict[str, float | None]:
    """ACC, FWT and BWT of one run; FWT where the store has the matching run of ONE."""
    alone = {
        _setting(other.config): _own_accuracies(other)
        for other in runs
        if other.config.method == REFERENCE and other.config.sequence == run.config.sequence and other.finished
    }
    return _measures(run, alone)


def _measures(run: StoredRun, alone: Mapping[str, Mapping[str, float]]) -> dict[str, float | None]:
    matrix = run.accuracies()
    measures: dict[str, float | None] = {"ACC": average_accuracy(matrix), "FWT": None, "BWT": None}
    if run.config.method == REFERENCE:
        return measures
    measures["BWT"] = backward_transfer(matrix)
    by_name = alone.get(_setting(run.config))
    if by_name is not None:
        names = run.task_names()
        measures["FWT"] = forward_transfer(matrix, {t: by_name[name] for t, name in names.items() if name in by_name})
    return measures


def _row(runs: list[StoredRun], alone: Mapping[str, Mapping[str, float]]) -> tuple[Cell, ...]:
    config = runs[0].config
    title = METHODS.load(config.method).title
    sequence = config.sequence if config.tasks is None else f"{config.sequence}[:{config.tasks}]"
    measured = [_measures(run, alone) for run in runs]
    ours = [Value.of([m[name] for m in measured if m[name] is not None]) for name in FORMULAS]  # type: ignore[misc]
    tables = ("accuracy", "forward_transfer", "backward_transfer")
    paper = [None if config.tasks is not None else paper_value(table, title, config.sequence) for table in tables]
    return (sequence, title, training_name(config.training), changes(config), len(runs), *ours, *paper)


def training_name(training: Training) -> str:
    """The preset, or what is different from the nearest one."""
    described = []
    for name, preset in PRESETS.items():
        given, usual = dataclasses.asdict(training), dataclasses.asdict(preset)
        described.append((name, [f"{key}={given[key]}" for key in given if given[key] != usual[key]]))
    name, differences = min(described, key=lambda item: len(item[1]))
    return " ".join([name, *differences])


def changes(config: RunConfig) -> str | None:
    """What of the network and the method is not as usual: without it, two ways to run would look like one."""
    usual = make_config(config.method, config.sequence).to_dict()
    given = config.to_dict()
    different = [
        f"{key}={value}"
        for section in ("network", "settings")
        for key, value in given[section].items()
        if value != usual[section][key]
    ]
    return " ".join(different) or None


def _own_accuracies(run: StoredRun) -> dict[str, float]:
    """What each task reached alone, by the task's name."""
    matrix = run.accuracies()
    return {name: matrix[task][task] for task, name in run.task_names().items()}


def _setting(config: RunConfig) -> str:
    """What a run and its reference must share."""
    raw = {key: value for key, value in config.to_dict().items() if key not in ("method", "settings")}
    return json.dumps(raw, sort_keys=True)


def _without_seeds(config: RunConfig) -> str:
    return json.dumps({key: value for key, value in config.to_dict().items() if key != "seeds"}, sort_keys=True)
