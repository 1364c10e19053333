"""Which importance, and what it is used for: SPG, SPG-FI, EWC-GI and EWC as two by two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from softmask.experiments.analyses.accuracy import measures, over_seeds
from softmask.experiments.analyses.grouping import (
    CHOSEN,
    Group,
    Runs,
    best_settings,
    finished_groups,
    gathered,
    seeds_of,
)
from softmask.experiments.analyses.statistics import with_interval
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.paper.published import paper_value
from softmask.experiments.runs.store import StoredRun

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
    runs = gathered(runs)
    found: dict[tuple[str, str, float], dict[str, Group]] = {}
    for group in best_settings(group for group in finished_groups(runs) if group.title in SQUARE.values()):
        found.setdefault(group.kind, {})[group.title] = group
    rows: list[tuple[Cell, ...]] = []
    for (sequence, training, width), groups in found.items():
        if len(groups) < 2:
            continue  # nothing to compare
        usual = all(group.usual_width for group in groups.values())
        by_seed = _by_seed(groups)
        four = [_accuracy(groups[title], runs) if title in groups else None for title in SQUARE.values()]
        label = (sequence, training, None if usual else width, len(by_seed))
        rows.append((*label, *four, *_effects(groups, by_seed)))
    return Table(
        "Accuracy by importance and mechanism, in percent",
        (
            *("sequence", "training", "width", "seeds"),
            *(f"{title} ({importance}, {mechanism})" for (importance, mechanism), title in SQUARE.items()),
            *EFFECTS,
        ),
        rows,
        (
            "Effects are differences in percentage points, averaged over the other factor, over the seeds that all "
            "have (counted under seeds), with Student's 95 % interval from two on; the interaction says how much "
            f"more gradient importance helps under a soft mask than in a penalty. {CHOSEN}",
        ),
        labels=2,
    )


def _accuracy(group: Group, runs: Runs) -> Value | None:
    value = over_seeds([measures(run, {}) for run in group.runs], "ACC", runs.lost(group))
    paper = _paper(group)
    return None if value is None else dataclasses.replace(value, paper=paper)


def _paper(group: Group) -> float | None:
    comparable = group.whole and group.usual_width
    return paper_value("accuracy", group.title, group.config.sequence) if comparable else None


def _by_seed(groups: Mapping[str, Group]) -> list[Accuracies]:
    """What the groups reached, for every seed that all of them have."""
    reached = {
        title: {seeds_of(run): average_accuracy(run.accuracies()) for run in group.runs}
        for title, group in groups.items()
    }
    shared = set.intersection(*(set(of_seed) for of_seed in reached.values()))
    return [{title: of_seed[seed] for title, of_seed in reached.items()} for seed in sorted(shared)]


def _effects(groups: Mapping[str, Group], by_seed: Sequence[Accuracies]) -> list[Value | None]:
    if len(groups) < len(SQUARE):
        return [None] * len(EFFECTS)
    paper = {title: known for title, group in groups.items() if (known := _paper(group)) is not None}
    complete = len(paper) == len(SQUARE)
    found = []
    for effect in EFFECTS.values():
        value = with_interval([effect(reached) for reached in by_seed])
        found.append(value and dataclasses.replace(value, paper=effect(paper) if complete else None))
    return found
