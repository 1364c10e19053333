"""Methods against each other: paired differences, importance by mechanism, and the identity of the three measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from softmask.experiments.analyses.accuracy import (
    Measures,
    References,
    accuracy_alone,
    measures,
    over_seeds,
    references,
)
from softmask.experiments.analyses.grouping import (
    CHOSEN,
    LABELS,
    UNRANKED,
    Group,
    Runs,
    best_settings,
    gathered,
    method_title,
    seeds_of,
)
from softmask.experiments.analyses.table import INTERVALS, Row, Table, Value
from softmask.experiments.metrics import FORMULAS, average_accuracy
from softmask.experiments.paper import paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun

BASE = "spg"
TOLERANCE = 0.5
"""Three rounded numbers may add up to 0.15; more than half a point is not rounding."""


def differences(runs: Iterable[StoredRun], against: str = BASE) -> Table:
    """Each method minus one of them on the same sequence, trained alike, over the seeds that both have."""
    runs = gathered(runs)
    alone, base = references(runs), method_title(against)
    measured = {
        index: {seeds_of(run): measures(run, alone) for run in group.runs} for index, group in enumerate(runs.groups)
    }
    candidates = [group for group in runs.groups if group.title == base]
    bases = {group.kind: runs.groups.index(group) for group in best_settings(candidates)}
    # With its defaults if it was run so; else with the settings that are best in validation.
    bases |= {group.kind: runs.groups.index(group) for group in candidates if not group.changed}
    rows: list[Row] = []
    for index, group in enumerate(runs.groups):
        at = bases.get(group.kind, index)
        pairs = [(own, measured[at][seed]) for seed, own in measured[index].items() if seed in measured[at]]
        if at != index and pairs:
            rows.append((*group.label, len(pairs), *(_difference(pairs, name, group.title) for name in FORMULAS)))
    note = (
        f"The method's number minus that of {base} on a network of the same width, averaged over the seeds that both "
        f"have; in brackets {INTERVALS}. {base} has its defaults or, where it was not run so, the settings that are "
        "best in validation."
    )
    return Table(f"Difference to {base}, in percentage points", (*LABELS, "seeds", *FORMULAS), rows, [note], labels=2)


def _difference(pairs: list[tuple[Measures, Measures]], name: str, title: str) -> Value | None:
    if name != "ACC" and title in UNRANKED:
        return None
    both = ((own[name], base[name]) for own, base in pairs)
    return Value.with_interval(own - base for own, base in both if own is not None and base is not None)


# (importance, mechanism) -> system
SQUARE = {
    ("gradient", "soft mask"): "SPG",
    ("Fisher", "soft mask"): "SPG-FI",
    ("gradient", "penalty"): "EWC-GI",
    ("Fisher", "penalty"): "EWC",
}
Accuracies = Mapping[str, float]
EFFECTS: dict[str, Callable[[Accuracies], float]] = {
    "gradient - Fisher": lambda acc: (acc["SPG"] - acc["SPG-FI"] + acc["EWC-GI"] - acc["EWC"]) / 2,
    "soft mask - penalty": lambda acc: (acc["SPG"] - acc["EWC-GI"] + acc["SPG-FI"] - acc["EWC"]) / 2,
    "interaction": lambda acc: (acc["SPG"] - acc["SPG-FI"]) - (acc["EWC-GI"] - acc["EWC"]),
}


def mechanism(runs: Iterable[StoredRun]) -> Table:
    """Accuracies of the four systems by importance and mechanism, and the effects of both where all four are there."""
    runs = gathered(runs)
    found: dict[tuple[str, str, float], dict[str, Group]] = {}
    for group in best_settings(group for group in runs.groups if group.title in SQUARE.values()):
        found.setdefault(group.kind, {})[group.title] = group
    rows: list[Row] = []
    for (sequence, training, width), groups in found.items():
        if len(groups) > 1:
            usual = all(group.usual_width for group in groups.values())
            by_seed = _by_seed(groups)
            four = [_accuracy(groups[title], runs) if title in groups else None for title in SQUARE.values()]
            rows.append((sequence, training, None if usual else width, len(by_seed), *four, *_effects(groups, by_seed)))
    systems = [f"{title} ({importance}, {used})" for (importance, used), title in SQUARE.items()]
    note = (
        "Effects are differences in percentage points, averaged over the other factor, over the seeds that all four "
        f"have (column seeds), with {INTERVALS}; the interaction is how much more gradient importance helps with a "
        f"soft mask than with a penalty. {CHOSEN}"
    )
    columns = ("sequence", "training", "width", "seeds", *systems, *EFFECTS)
    return Table("Accuracy by importance and mechanism, in percent", columns, rows, [note], labels=2)


def _accuracy(group: Group, runs: Runs) -> Value | None:
    value = over_seeds([measures(run, {}) for run in group.runs], "ACC", runs.lost(group))
    return value and replace(value, paper=_paper(group))


def _paper(group: Group) -> float | None:
    comparable = group.whole and group.usual_width
    return paper_value("accuracy", group.title, group.config.sequence) if comparable else None


def _by_seed(groups: Mapping[str, Group]) -> list[Accuracies]:
    """Accuracies of the groups for every seed that all of them have."""
    found = {
        title: {seeds_of(run): average_accuracy(run.accuracies()) for run in group.runs}
        for title, group in groups.items()
    }
    shared = set.intersection(*(set(of_seed) for of_seed in found.values()))
    return [{title: of_seed[seed] for title, of_seed in found.items()} for seed in sorted(shared)]


def _effects(groups: Mapping[str, Group], by_seed: Sequence[Accuracies]) -> list[Value | None]:
    if len(groups) < len(SQUARE):
        return [None] * len(EFFECTS)
    paper = {title: known for title, group in groups.items() if (known := _paper(group)) is not None}
    found = []
    for effect in EFFECTS.values():
        value = Value.with_interval(effect(accuracies) for accuracies in by_seed)
        found.append(value and replace(value, paper=effect(paper) if len(paper) == len(SQUARE) else None))
    return found


def gap(accuracy: float, alone: float, forward: float, backward: float, tasks: int) -> float:
    """ACC - (mean(ONE) + FWT + BWT (T-1)/T), which is zero by the definitions."""
    return accuracy - (alone + forward + backward * (tasks - 1) / tasks)


def paper_gap(title: str, sequence: str) -> float | None:
    """The same of the paper's numbers; None where it lacks one of them."""
    facts = paper_tables()["sequences"].get(sequence)
    accuracy, alone = (paper_value("accuracy", name, sequence) for name in (title, "ONE"))
    forward, backward = (paper_value(f"{way}_transfer", title, sequence) for way in ("forward", "backward"))
    if facts is None or accuracy is None or alone is None or forward is None or backward is None:
        return None
    return gap(accuracy, alone, forward, backward, facts["tasks"])


def our_gap(group: Group, measured: Sequence[Measures], alone: References) -> float | None:
    """Of means over seeds, as printed in three tables. Not zero where a seed lacks its reference."""
    accuracy, forward, backward = (Value.of(each[name] for each in measured) for name in FORMULAS)
    found = [by_position for run in group.runs if (by_position := accuracy_alone(run, alone))]
    own = Value.of(sum(by_position.values()) / len(by_position) for by_position in found)
    if own is None or accuracy is None or forward is None or backward is None:
        return None
    return gap(accuracy.mean, own.mean, forward.mean, backward.mean, group.tasks)


def identity_notes(group: Group, measured: Sequence[Measures], alone: References) -> tuple[str, ...]:
    found = {"our": our_gap(group, measured, alone)}
    if group.whole:
        found["the paper's"] = paper_gap(group.title, group.config.sequence)
    return tuple(
        f"{group.title} on {group.sequence}: {whose} ACC is {size:+.1f} from ONE + FWT + BWT (T-1)/T"
        for whose, size in found.items()
        if size is not None and abs(size) > TOLERANCE
    )


def identity(runs: Iterable[StoredRun]) -> Table:
    """All cells, the paper's and ours, that break the identity by more than the tolerance."""
    runs = gathered(runs)
    alone = references(runs)
    gaps: list[tuple[str, str, str, str | None, float | None]] = [
        ("paper", sequence, title, None, paper_gap(title, sequence))
        for sequence in paper_tables()["sequences"]
        for title in paper_tables()["accuracy"]
        if title not in UNRANKED
    ]
    for group in runs.groups:
        size = our_gap(group, [measures(run, alone) for run in group.runs], alone)
        gaps.append(("ours", group.sequence, group.title, group.training, size))
    rows = [(*label, Value(size, signed=True)) for *label, size in gaps if size is not None and abs(size) > TOLERANCE]
    return Table(
        "Accuracies that differ by more than 0.5 from mean(ONE) + FWT + BWT (T-1)/T",
        ("whose", "sequence", "method", "training", "difference"),
        rows,
        ["The identity follows from the definitions: means over the same seeds cannot break it."],
        labels=3,
    )
