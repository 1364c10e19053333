"""The numbers by which claims are judged: the paper's, or a store's for one training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from softmask.errors import UnknownName
from softmask.experiments.analyses.accuracy import References, group_curves, measures, references
from softmask.experiments.analyses.capacity import (
    CROSS_HEAD,
    blocked_share,
    cross_head_value,
    facts_after,
    paper_blocked,
    paper_cross_head,
    parts_of,
)
from softmask.experiments.analyses.cost import learnable
from softmask.experiments.analyses.grouping import Group, best_settings, gathered, milestones
from softmask.experiments.analyses.pruning import STRATEGIES, pruned_accuracy
from softmask.experiments.analyses.representation import ONTO, representation_curves
from softmask.experiments.analyses.table import Value, slope
from softmask.experiments.paper import MEASURES, paper_measure, paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun

Key = tuple[str, ...]
"""Measure, system, sequence, and where needed more: ("blocked", "HAT", "C-10", "conv1", "T/2")."""


@dataclass(frozen=True)
class Numbers:
    """Numbers by their key."""

    known: dict[Key, float]
    seeds: Mapping[Key, int] = field(default_factory=dict)
    """Number of seeds; none for printed numbers and for those that need no run."""
    partial: frozenset[Key] = frozenset()
    """Numbers for which some seeds failed."""
    printed: bool = True
    """Whether they were rounded for a table: numbers that are printed as equal may differ."""
    missing: set[Key] = field(default_factory=set)
    """Keys that were requested but not found."""

    def get(self, *key: str) -> float | None:
        if key not in self.known:
            self.missing.add(key)
        return self.known.get(key)

    def fewest_seeds(self, keys: Iterable[Key]) -> int | None:
        return min((self.seeds[key] for key in keys if key in self.seeds), default=None)


def paper_numbers() -> Numbers:
    """All numbers that the paper prints."""
    known: dict[Key, float | None] = {}
    tables = paper_tables()
    for sequence in tables["sequences"]:
        for title in [*tables["accuracy"], *tables["ablation_accuracy"]]:
            for measure in MEASURES:
                known[measure, title, sequence] = paper_measure(measure, title, sequence)
            known["size", title, sequence] = paper_value("network_size_millions", title, sequence)
            for part in tables["blocked_share"]:
                for label in ("1", "T/2", "T"):
                    known["blocked", title, sequence, part, label] = paper_blocked(part, label, title, sequence)
        for label in ("2", "T/2", "T"):
            for name in CROSS_HEAD:
                known["cross-head", "SPG", sequence, label, name] = paper_cross_head(sequence, label, name)
        for strategy in STRATEGIES:
            known["pruned", "SPG", sequence, strategy] = paper_value("pruning_accuracy_first_task", strategy, sequence)
    return Numbers({key: value for key, value in known.items() if value is not None})


def store_numbers(runs: Iterable[StoredRun]) -> dict[str, Numbers]:
    """A store's numbers on the paper's sequences, by training."""
    runs = gathered(runs)
    alone = references(runs)
    known: dict[str, dict[Key, Value]] = {}
    sizes: dict[str, dict[Key, float]] = {}
    chosen = best_settings(group for group in runs.groups if _as_in_the_paper(group))
    for group in chosen:
        found = _of_group(group, alone)
        if runs.lost(group):
            found = {key: replace(value, partial=True) for key, value in found.items()}
        known.setdefault(group.training, {}).update(found)
        sizes.setdefault(group.training, {}).update(_size(group))
    for curve in representation_curves(runs):
        # Only the paper's pairs, the features of the last task, and the settings behind all other numbers.
        if curve.group in chosen and not curve.union and curve.onto == ONTO.get(curve.group.sequence):
            for learned, value in curve.points.items():
                key = ("representation", curve.group.title, curve.group.sequence, str(learned))
                known[curve.group.training][key] = value
    return {training: _numbers(found, sizes[training]) for training, found in known.items()}


def _numbers(found: Mapping[Key, Value], sizes: Mapping[Key, float]) -> Numbers:
    means = {key: value.mean for key, value in found.items()}
    seeds = {key: value.count for key, value in found.items()}
    partial = frozenset(key for key, value in found.items() if value.partial)
    return Numbers({**means, **sizes}, seeds, partial, printed=False)


def _as_in_the_paper(group: Group) -> bool:
    return group.whole and group.sequence in paper_tables()["sequences"] and group.usual_width


def _size(group: Group) -> dict[Key, float]:
    try:
        return {("size", group.title, group.sequence): learnable(group.config.method, group.sequence) / 1e6}
    except UnknownName:  # a method that is not installed here
        return {}


def _of_group(group: Group, alone: References) -> dict[Key, Value]:
    title, sequence = group.title, group.sequence
    measured = [measures(run, alone) for run in group.runs]
    found: dict[Key, Value | None] = {
        (measure, title, sequence): Value.of(each[measure] for each in measured) for measure in MEASURES
    }
    for label, learned in milestones(group.tasks).items():
        for part in parts_of([group]):
            found["blocked", title, sequence, part, label] = blocked_share(group, part, learned)
    for label, learned in milestones(group.tasks, first=2).items():
        facts = [facts_after(run, learned) for run in group.runs]
        for name in CROSS_HEAD:
            found["cross-head", title, sequence, label, name] = cross_head_value(facts, name)
    found["slope", title, sequence] = Value.of(map(slope, group_curves(group, alone)))
    for strategy in STRATEGIES:
        found["pruned", title, sequence, strategy] = pruned_accuracy(group, strategy)
    return {key: value for key, value in found.items() if value is not None}
