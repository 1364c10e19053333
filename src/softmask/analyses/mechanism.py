"""Which importance, and what it is used for: SPG, SPG-FI, EWC-GI and EWC as two by two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

from softmask.analyses.grouping import best_settings, finished_groups
from softmask.analyses.table import Cell, Table, Value
from softmask.metrics import average_accuracy
from softmask.paper import paper_value
from softmask.runs.store import StoredRun

# (importance, mechanism) -> system
SQUARE = {
    ("gradient", "soft mask"): "SPG",
    ("Fisher", "soft mask"): "SPG-FI",
    ("gradient", "penalty"): "EWC-GI",
    ("Fisher", "penalty"): "EWC",
}
Accuracies = Mapping[str, float]


def _importance_effect(of: Accuracies) -> float:
    """Gradient instead of Fisher, over both mechanisms."""
    return ((of["SPG"] - of["SPG-FI"]) + (of["EWC-GI"] - of["EWC"])) / 2


def _mechanism_effect(of: Accuracies) -> float:
    """A soft mask instead of a penalty, over both importances."""
    return ((of["SPG"] - of["EWC-GI"]) + (of["SPG-FI"] - of["EWC"])) / 2


def _interaction(of: Accuracies) -> float:
    """How much more gradient importance helps under a soft mask than in a penalty."""
    return (of["SPG"] - of["SPG-FI"]) - (of["EWC-GI"] - of["EWC"])


EFFECTS: dict[str, Callable[[Accuracies], float]] = {
    "gradient - Fisher": _importance_effect,
    "soft mask - penalty": _mechanism_effect,
    "interaction": _interaction,
}


def mechanism(runs: Iterable[StoredRun]) -> Table:
    """Accuracies of the four, by importance and by mechanism, and the effects of both where all four are there."""
    found: dict[tuple[str, str], dict[str, Value]] = {}
    for group in best_settings(finished_groups(runs)):
        value = Value.of([average_accuracy(run.accuracies()) for run in group.runs])
        if group.title in SQUARE.values() and value is not None:
            paper = paper_value("accuracy", group.title, group.config.sequence) if group.whole else None
            cells = found.setdefault((group.sequence, group.training), {})
            cells[group.title] = dataclasses.replace(value, paper=paper)
    rows: list[tuple[Cell, ...]] = []
    for (sequence, training), cells in found.items():
        if len(cells) < 2:
            continue  # nothing to compare
        four = [cells.get(title) for title in SQUARE.values()]
        rows.append((sequence, training, *four, *_effects(cells)))
    return Table(
        "Accuracy by importance and mechanism, in percent",
        (
            *("sequence", "training"),
            *(f"{title} ({importance}, {mechanism})" for (importance, mechanism), title in SQUARE.items()),
            *EFFECTS,
        ),
        rows,
        (
            "Effects are differences in percentage points, averaged over the other factor; the interaction says "
            "how much more gradient importance helps under a soft mask than in a penalty.",
        ),
        labels=2,
    )


def _effects(cells: Mapping[str, Value]) -> list[Value | None]:
    if len(cells) < len(SQUARE):
        return [None] * len(EFFECTS)
    ours = {title: value.mean for title, value in cells.items()}
    paper = {title: value.paper for title, value in cells.items() if value.paper is not None}
    complete = len(paper) == len(SQUARE)
    return [Value(f(ours), signed=True, paper=f(paper) if complete else None) for f in EFFECTS.values()]
