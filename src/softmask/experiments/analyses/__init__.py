"""Analyses: functions from stored runs to tables, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from softmask.experiments.analyses import (
    accuracy,
    by_sequence,
    capacity,
    comparisons,
    cost,
    pruning,
    representation,
)
from softmask.experiments.analyses.table import Table
from softmask.experiments.runs.store import StoredRun

__all__ = ["ANALYSES", "Analysis"]


@dataclass(frozen=True)
class Analysis:
    """A function from stored runs to a table."""

    name: str
    compute: Callable[..., Table]
    summary: str
    paper: str = ""
    """Where the paper has the same."""
    option: str = ""
    """Keyword of `compute`: `published` or `against`."""
    needs_runs: bool = True

    def __call__(self, runs: Any, **options: Any) -> Table:
        return self.compute(runs, **options)


def _claims(runs: Iterable[StoredRun]) -> Table:
    from softmask.experiments.paper.verdicts import claims  # which is judged by these analyses

    return claims(runs)


_ALL = (
    Analysis(
        "accuracy", accuracy.accuracy, "ACC, FWT and BWT by method and sequence", "tables 2, 3 and 4", "published"
    ),
    Analysis(
        "accuracy-by-sequence",
        by_sequence.accuracy_by_sequence,
        "accuracy in the paper's layout, with averages, best and second best",
        "table 2",
        "published",
    ),
    Analysis(
        "forward-transfer",
        by_sequence.forward_transfer,
        "forward transfer in the paper's layout",
        "table 3",
        "published",
    ),
    Analysis(
        "backward-transfer",
        by_sequence.backward_transfer,
        "backward transfer in the paper's layout",
        "table 4",
        "published",
    ),
    Analysis(
        "differences",
        comparisons.differences,
        "difference of each method to a baseline, paired by seed",
        option="against",
    ),
    Analysis("ablation", by_sequence.ablation, "ablations of SPG", "table 7", "published"),
    Analysis("mechanism", comparisons.mechanism, "importance by mechanism: SPG, SPG-FI, EWC-GI, EWC", "section 4.2"),
    Analysis("capacity", capacity.capacity, "share of completely blocked parameters, by layer", "tables 5 and 8"),
    Analysis("cross-head", capacity.cross_head, "effect of importance through old heads", "table 9"),
    Analysis(
        "transfer-curve", accuracy.transfer_curve, "forward transfer of each task, and its slope", "figures 3 and 5"
    ),
    Analysis("without-id", accuracy.without_id, "accuracy without a task id, by each rule"),
    Analysis("matrix", accuracy.accuracy_matrix, "accuracy on each task after each task"),
    Analysis("pruning", pruning.pruning, "accuracy on the first task after pruning by importance", "table 6"),
    Analysis(
        "representation",
        representation.representation,
        "quality of the features for another dataset",
        "figures 4 and 6",
    ),
    Analysis("claims", _claims, "each comparative claim of the paper: held, not held or no data", "section 4"),
    Analysis("cost", cost.cost, "time, throughput, memory and disk, and their growth"),
    Analysis(
        "identity", comparisons.identity, "accuracies that are inconsistent with the transfers, the paper's and ours"
    ),
    Analysis(
        "network-size",
        lambda runs: cost.network_size({run.config.method for run in runs}),
        "learnable parameters of every method",
        "table 10",
        needs_runs=False,
    ),
)
ANALYSES: dict[str, Analysis] = {each.name: each for each in _ALL}
