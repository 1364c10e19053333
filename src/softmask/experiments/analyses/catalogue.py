"""The analyses by name, and what of the paper each of them stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from softmask.errors import UnknownName
from softmask.experiments.analyses import by_sequence
from softmask.experiments.analyses.accuracy import accuracy
from softmask.experiments.analyses.capacity import capacity, cross_head
from softmask.experiments.analyses.cost import cost
from softmask.experiments.analyses.curves import accuracy_matrix, transfer_curve
from softmask.experiments.analyses.differences import differences
from softmask.experiments.analyses.identity import identity
from softmask.experiments.analyses.mechanism import mechanism
from softmask.experiments.analyses.network_size import network_size
from softmask.experiments.analyses.pruning import pruning
from softmask.experiments.analyses.representation import representation
from softmask.experiments.analyses.table import Table
from softmask.experiments.paper.claims import claims
from softmask.experiments.runs.store import StoredRun


@dataclass(frozen=True)
class Analysis:
    """A function from stored runs to a table."""

    name: str
    compute: Callable[[Iterable[StoredRun]], Table]
    summary: str
    paper: str = ""
    """Where the paper has the same."""
    paper_table: str | None = None
    """Under which name `softmask.experiments.paper.published` keeps those numbers."""
    needs_runs: bool = True

    def __call__(self, runs: Iterable[StoredRun]) -> Table:
        return self.compute(runs)


_ALL = (
    Analysis("accuracy", accuracy, "ACC, FWT and BWT of every method on every sequence", "tables 2, 3 and 4"),
    Analysis(
        "accuracy-by-sequence",
        by_sequence.accuracy_by_sequence,
        "accuracy in the paper's layout, with averages, best and second",
        "table 2",
        "accuracy",
    ),
    Analysis(
        "forward-transfer",
        by_sequence.forward_transfer,
        "forward transfer in the paper's layout",
        "table 3",
        "forward_transfer",
    ),
    Analysis(
        "backward-transfer",
        by_sequence.backward_transfer,
        "backward transfer in the paper's layout",
        "table 4",
        "backward_transfer",
    ),
    Analysis("differences", differences, "each method minus SPG, seed by seed, with an interval"),
    Analysis("ablation", by_sequence.ablation, "SPG without its parts", "table 7", "ablation_accuracy"),
    Analysis("mechanism", mechanism, "importance by mechanism: SPG, SPG-FI, EWC-GI, EWC", "section 4.2", "accuracy"),
    Analysis(
        "capacity", capacity, "share of completely blocked parameters, by layer", "tables 5 and 8", "blocked_share"
    ),
    Analysis(
        "cross-head",
        cross_head,
        "what importance through old heads adds",
        "table 9",
        "cross_head_importance_fraction",
    ),
    Analysis("transfer-curve", transfer_curve, "forward transfer of each task, and its slope", "figures 3 and 5"),
    Analysis("matrix", accuracy_matrix, "accuracy on each task after each task"),
    Analysis(
        "pruning",
        pruning,
        "accuracy of the first task without some of the backbone's parameters",
        "table 6",
        "pruning_accuracy_first_task",
    ),
    Analysis(
        "representation", representation, "what the features are worth for other data, task by task", "figures 4 and 6"
    ),
    Analysis("claims", claims, "each comparative sentence of the paper: held, not held or no data", "section 4"),
    Analysis("cost", cost, "time, throughput, memory and disk, and how they grow"),
    Analysis("identity", identity, "accuracies that the transfers contradict, the paper's and ours"),
    Analysis(
        "network-size",
        lambda runs: network_size({run.config.method for run in runs}),
        "learnable parameters of every method",
        "table 10",
        "network_size_millions",
        needs_runs=False,
    ),
)
ANALYSES: dict[str, Analysis] = {each.name: each for each in _ALL}


def analysis(name: str) -> Analysis:
    if name not in ANALYSES:
        raise UnknownName("analysis", name, ANALYSES)
    return ANALYSES[name]
