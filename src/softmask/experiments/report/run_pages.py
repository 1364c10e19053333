"""The pages of single runs, as data for the report's script."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from softmask.errors import UnknownName
from softmask.experiments.analyses.accuracy import References, measures
from softmask.experiments.analyses.capacity import blocked_parts
from softmask.experiments.analyses.grouping import LABELS, Group
from softmask.experiments.analyses.table import Row, Table
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.store import StoredRun
from softmask.experiments.sequences import SEQUENCES, sequence_facts
from softmask.learning.seeds import Seeds
from softmask.learning.training import PRESETS

FULL, THIN, WITHOUT_CURVES, CONFIG_ONLY = range(4)
"""Levels of detail: a report of very many runs shows less of each."""
LESS = {
    THIN: "Learning curves show at most 60 epochs of each run.",
    WITHOUT_CURVES: "Learning curves of single runs are left out.",
    CONFIG_ONLY: "Learning curves and matrices of single runs are left out.",
}
THIN_POINTS = 60


def run_data(run: StoredRun, detail: int = FULL) -> dict[str, Any]:
    """One run: config, curves, matrix, blocked share by layer."""
    tasks = run.events("task")
    names = [str(event["name"]) for event in tasks] if detail < WITHOUT_CURVES else []
    return {
        "title": f"{Group((run,)).title} on {Group((run,)).sequence}, seed {seed_of(run)}",
        "status": run.status,
        "said": status_sentence(run),
        "config": flat_config(run.config),
        "tasks": names,
        "epochs": _epochs(run, detail),
        "matrix": _matrix(run) if detail < CONFIG_ONLY else [],
        "blocked": _blocked(run, len(tasks)) if detail < CONFIG_ONLY else {},
        "command": command(run.config),
    }


def seed_of(run: StoredRun) -> str:
    """The one seed, or all of them where they differ."""
    seeds = vars(run.config.seeds)
    return str(next(iter(seeds.values()))) if len(set(seeds.values())) == 1 else " ".join(map(str, seeds.values()))


def status_sentence(run: StoredRun) -> str:
    """Status of the run in one sentence."""
    done = len(run.events("task"))
    if run.status == "finished":
        started = run.events("started")
        where = {key: started[-1].get(key) for key in ("softmask", "torch", "machine")} if started else {}
        software = ", ".join(f"{key} {value}" for key, value in where.items() if value)
        return f"Finished: {done} tasks." + (f" Made with {software}." if software else "")
    if run.status == "failed":
        why = run.events("failed")[-1]
        return f"Failed after {done} tasks: {why.get('message') or why.get('reason') or 'no reason is stored'}"
    return f"Unfinished: {done} tasks learned so far; the command below continues it."


def flat_config(config: RunConfig) -> dict[str, str]:
    raw = config.to_dict()
    flat = {"method": raw["method"], "sequence": raw["sequence"]}
    if raw["tasks"] is not None:
        flat["tasks"] = str(raw["tasks"])
    for section in ("training", "network", "settings", "seeds"):
        flat |= {f"{section}.{key}": json.dumps(value) for key, value in raw[section].items()}
    return flat


def command(config: RunConfig) -> str:
    """The command that makes this run."""
    parts = ["softmask", "run", "--method", config.method, "--sequence", config.sequence]
    seeds = vars(config.seeds)
    seed = max(set(seeds.values()), key=list(seeds.values()).count)
    candidates = [(preset, _changes(config, preset, seed)) for preset in PRESETS]
    preset, changes = min(candidates, key=lambda item: len(item[1]))
    parts += ["--preset", preset, "--seed", str(seed)]
    if config.tasks is not None:
        parts += ["--tasks", str(config.tasks)]
    for change in changes:
        parts += ["--set", change]
    if config.sequence in SEQUENCES.names() and sequence_facts(config.sequence).needs_data:
        parts += ["--data", "DIR"]
    return shlex.join(parts)


def _changes(config: RunConfig, preset: str, seed: int) -> list[str]:
    given = config.to_dict()
    usual: dict[str, Any] = {"training": vars(PRESETS[preset]), "settings": {}, "network": {}}
    usual["seeds"] = vars(Seeds.all_from(seed))
    if ":" not in config.sequence:  # a folder of images may be gone: its network is given in full
        with suppress(UnknownName):  # likewise a method that is not installed here
            usual = _usual(config.method, config.sequence, preset, seed)
    return [
        f"{section}.{key}={json.dumps(value)}"
        for section in ("training", "network", "settings", "seeds")
        for key, value in given[section].items()
        if key not in usual[section] or value != usual[section][key]
    ]


@functools.lru_cache(maxsize=10_000)
def _usual(method: str, sequence: str, preset: str, seed: int) -> dict[str, Any]:
    return make_config(method, sequence, preset=preset, seed=seed).to_dict()


def _epochs(run: StoredRun, detail: int) -> list[list[float]]:
    """Task, validation accuracy, validation loss and training loss of every epoch."""
    if detail >= WITHOUT_CURVES:
        return []
    events = [event for event in run.events("epoch") if "val_accuracy" in event]
    if detail == THIN and len(events) > THIN_POINTS:
        events = [events[round(i * (len(events) - 1) / (THIN_POINTS - 1))] for i in range(THIN_POINTS)]
    return [
        [event["task"] + 1, round(100 * event["val_accuracy"], 1)]
        + [_finite(event[name]) for name in ("val_loss", "train_loss")]
        for event in events
    ]


def _finite(loss: float) -> float:
    """A loss that can be drawn: a diverged one is shown at the upper limit."""
    return round(min(float(loss), 99.0), 3) if loss == loss else 99.0


def _matrix(run: StoredRun) -> list[list[float | None]]:
    matrix = run.accuracies()
    if not matrix:
        return []
    tasks = sorted({task for row in matrix.values() for task in row})
    return [[round(row[task], 1) if task in row else None for task in tasks] for _, row in sorted(matrix.items())]


def _blocked(run: StoredRun, tasks: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for learned in range(1, tasks + 1):
        for part, share in blocked_parts(run, learned).items():
            found.setdefault(part, []).append(round(100 * share, 3))
    return {part: shares for part, shares in found.items() if len(shares) == tasks}


def runs_table(runs: Sequence[StoredRun], alone: References) -> Table:
    """Every run of the store with its status; the report links each to its page."""
    rows: list[Row] = []
    for run in sorted(runs, key=lambda run: (*Group((run,)).order, seed_of(run))):
        group = Group((run,))
        found = measures(run, alone) if run.finished and run.accuracies() else {}
        results = [found.get(name) for name in ("ACC", "FWT", "BWT")]
        rows.append((run.path.name, *group.label, seed_of(run), run.status, len(run.events("task")), *results))
    columns = ("run", *LABELS, "seed", "status", "tasks", "ACC", "FWT", "BWT")
    return Table("All runs", columns, rows)
