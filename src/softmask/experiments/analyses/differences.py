"""How far every method lies from SPG, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable

from softmask.experiments.analyses.accuracy import Measures, measures, references
from softmask.experiments.analyses.grouping import UNRANKED, best_settings, finished_groups, gathered, seeds_of
from softmask.experiments.analyses.statistics import with_interval
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.metrics import FORMULAS
from softmask.experiments.runs.store import StoredRun

BASE = "SPG"


def differences(runs: Iterable[StoredRun]) -> Table:
    """Each method minus SPG on the same sequence, trained alike, over the seeds that both have."""
    runs = gathered(runs)
    alone = references(runs)
    measured: dict[int, dict[str, Measures]] = {}
    groups = finished_groups(runs)
    for index, group in enumerate(groups):
        measured[index] = {seeds_of(run): measures(run, alone) for run in group.runs}
    bases = {group.kind: groups.index(group) for group in best_settings(g for g in groups if g.title == BASE)}
    # As it comes, if it was run so; else with the settings that are best in validation.
    bases |= {group.kind: index for index, group in enumerate(groups) if group.title == BASE and not group.changed}
    rows: list[tuple[Cell, ...]] = []
    for index, group in enumerate(groups):
        base = bases.get(group.kind)
        if base is None or base == index:
            continue
        pairs = [(own, measured[base][seed]) for seed, own in measured[index].items() if seed in measured[base]]
        if pairs:
            cells = [_difference(pairs, name, group.title) for name in FORMULAS]
            rows.append((group.sequence, group.title, group.training, group.changed, len(pairs), *cells))
    return Table(
        f"Difference to {BASE}, in percentage points",
        ("sequence", "method", "training", "changed", "seeds", *FORMULAS),
        rows,
        (
            f"The method's number minus {BASE}'s on a network of the same width, averaged over the seeds that both "
            "have; in brackets Student's 95 % "
            f"interval of the paired differences, from two seeds on. Of several ways to set it, {BASE} as it comes, or "
            "else the one that is best in validation.",
        ),
        labels=2,
    )


def _difference(pairs: list[tuple[Measures, Measures]], name: str, title: str) -> Value | None:
    if name != "ACC" and title in UNRANKED:
        return None
    both = [(own[name], base[name]) for own, base in pairs]
    return with_interval([own - base for own, base in both if own is not None and base is not None])
