"""The numbers that claims are judged by: the paper's, or a store's for one way of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from softmask.experiments.analyses.accuracy import PAPER_TABLES, References, measures, paper_measure, references
from softmask.experiments.analyses.capacity import (
    CROSS_HEAD,
    blocked_share,
    cross_head_value,
    facts_after,
    paper_blocked,
    paper_cross_head,
    parts_of,
)
from softmask.experiments.analyses.curves import group_curves
from softmask.experiments.analyses.grouping import Group, best_settings, finished_groups, gathered, milestones
from softmask.experiments.analyses.network_size import learnable
from softmask.experiments.analyses.pruning import STRATEGIES, pruned_accuracy
from softmask.experiments.analyses.representation import ONTO, representation_curves
from softmask.experiments.analyses.statistics import slope
from softmask.experiments.analyses.table import Value
from softmask.experiments.paper.published import paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun

Key = tuple[str, ...]
"""What is measured, of which system, on which sequence, and where that is not enough, more."""


@dataclass(frozen=True)
class Numbers:
    """Numbers by what they say: ("ACC", "SPG", "C-10") or ("blocked", "HAT", "C-10", "conv1", "T/2")."""

    known: dict[Key, float]
    seeds: Mapping[Key, int] = field(default_factory=dict)
    """How many are behind a number; nothing is said of printed ones, and of those that need none."""
    partial: frozenset[Key] = frozenset()
    """Numbers of which some seeds failed."""
    printed: bool = True
    """Whether they were rounded for a table: then what is printed as equal may not be."""

    def get(self, *key: str) -> float | None:
        return self.known.get(key)

    def fewest_seeds(self, keys: Iterable[Key]) -> int | None:
        return min((self.seeds[key] for key in keys if key in self.seeds), default=None)


def paper_numbers() -> Numbers:
    """What the paper prints."""
    known: dict[Key, float | None] = {}
    tables = paper_tables()
    titles = [*tables["accuracy"], *tables["ablation_accuracy"]]
    for sequence in tables["sequences"]:
        for title in titles:
            for measure in PAPER_TABLES:
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
    """A store's numbers on the paper's sequences, for each way of training."""
    runs = gathered(runs)
    alone = references(runs)
    known: dict[str, dict[Key, Value]] = {}
    sizes: dict[str, dict[Key, float]] = {}
    chosen = best_settings(group for group in finished_groups(runs) if _as_in_the_paper(group))
    for group in chosen:
        found = _of_group(group, alone)
        if runs.lost(group):
            found = {key: replace(value, partial=True) for key, value in found.items()}
        known.setdefault(group.training, {}).update(found)
        size = learnable(group.config.method, group.sequence) / 1e6
        sizes.setdefault(group.training, {})["size", group.title, group.sequence] = size
    for curve in representation_curves(runs):
        # The paper's pairs, through the last task's features, of the settings that all other numbers are of.
        if curve.group in chosen and not curve.union and curve.onto == ONTO.get(curve.group.sequence):
            for learned, value in curve.points.items():
                key = ("representation", curve.group.title, curve.group.sequence, str(learned))
                known[curve.group.training][key] = value
    return {training: _numbers(found, sizes[training]) for training, found in known.items()}


def _numbers(found: Mapping[Key, Value], sizes: Mapping[Key, float]) -> Numbers:
    """What was measured with seeds, and what needs none."""
    means = {key: value.mean for key, value in found.items()}
    seeds, partial = {key: value.count for key, value in found.items()}, (k for k, v in found.items() if v.partial)
    return Numbers({**means, **sizes}, seeds, frozenset(partial), printed=False)


def _as_in_the_paper(group: Group) -> bool:
    return group.whole and group.sequence in paper_tables()["sequences"] and group.usual_width


def _of_group(group: Group, alone: References) -> dict[Key, Value]:
    title, sequence = group.title, group.sequence
    measured = [measures(run, alone) for run in group.runs]
    found: dict[Key, Value | None] = {
        (measure, title, sequence): Value.of([v for each in measured if (v := each[measure]) is not None])
        for measure in PAPER_TABLES
    }
    for label, learned in milestones(group.tasks).items():
        for part in parts_of([group]):
            found["blocked", title, sequence, part, label] = blocked_share(group, part, learned)
    for label, learned in milestones(group.tasks, first=2).items():
        facts = [facts_after(run, learned) for run in group.runs]
        for name in CROSS_HEAD:
            found["cross-head", title, sequence, label, name] = cross_head_value(facts, name)
    slopes = [slope(curve) for curve in group_curves(group, alone)]
    found["slope", title, sequence] = Value.of([each for each in slopes if each is not None])
    for strategy in STRATEGIES:
        found["pruned", title, sequence, strategy] = pruned_accuracy(group, strategy)
    return {key: value for key, value in found.items() if value is not None}
