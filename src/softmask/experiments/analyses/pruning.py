"""Pruning by importance: the first task again, with some of the backbone's parameters set to zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.grouping import Group, gathered, sequence_order
from softmask.experiments.analyses.table import Row, Table, Value, pivot
from softmask.experiments.paper import paper_value
from softmask.experiments.runs.run import load_from_checkpoint
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.evaluation import accuracy
from softmask.learning.seeds import derive
from softmask.learning.task import Batches
from softmask.methods.spg import SPG

STRATEGIES = {
    "Nothing": ("nothing", 0.0),
    "Lowest 10%": ("lowest", 0.1),
    "Random 10%": ("random", 0.1),
    "Highest 10%": ("highest", 0.1),
    "Lowest 20%": ("lowest", 0.2),
    "Random 20%": ("random", 0.2),
    "Highest 20%": ("highest", 0.2),
}
"""The paper's names: which parameters are pruned, and their share."""
METHODS = ("spg", "spg-no-chi", "spg-no-smh")
"""Methods with gradient importance."""
RANKINGS = ("backbone", "layer")


def measure_pruning(run: StoredRun, store: Store, data: Path | None, ranked_over: str = "backbone") -> bool:
    """Adds missing results to the run's events; returns whether any was missing. Needs the checkpoint of task 1."""
    known = {event["strategy"] for event in run.events("pruning") if event["ranked_over"] == ranked_over}
    missing = [name for name in STRATEGIES if name not in known]
    if not missing:
        return False
    method, sequence = load_from_checkpoint(run, learned=1, data=data)
    if not isinstance(method, SPG):
        raise SoftmaskError(f"{run.config.method} has no gradient importance: {', '.join(METHODS)} have")
    with store.open(run.config) as writer:
        for name in missing:
            which, share = STRATEGIES[name]
            reached = accuracy_when_pruned(method, sequence.tests[0], which, share, ranked_over)
            writer.event("pruning", strategy=name, ranked_over=ranked_over, test=reached, classes=sequence.classes[0])
    return True


@torch.no_grad()
def accuracy_when_pruned(method: SPG, test: Batches, which: str, share: float, ranked_over: str = "backbone") -> float:
    """Accuracy on the first task, as a fraction; the method is restored afterwards."""
    watched = method.mask.parameters()
    before = {name: parameter.detach().clone() for name, parameter in watched.items()}
    seed = derive(method.scenario.seeds.init, "pruning", which, str(share))
    try:
        for name, pruned in to_prune(method.mask.importance, which, share, ranked_over, seed).items():
            watched[name].masked_fill_(pruned, 0.0)
        return accuracy(method, test, 0)
    finally:
        for name, parameter in watched.items():
            parameter.copy_(before[name])


def to_prune(
    importance: Mapping[str, Tensor], which: str, share: float, ranked_over: str, seed: int
) -> dict[str, Tensor]:
    """A mask of the pruned entries of every tensor: exactly the share of the backbone, or of each layer, rounded."""
    generator = torch.Generator().manual_seed(seed)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in importance.items():
        groups.setdefault(name.split(".")[0] if ranked_over == "layer" else "", {})[name] = tensor
    chosen: dict[str, Tensor] = {}
    for group in groups.values():
        joined = torch.cat([tensor.flatten() for tensor in group.values()])
        parts = _chosen(joined, which, share, generator).split([tensor.numel() for tensor in group.values()])
        chosen |= {name: part.view_as(group[name]) for name, part in zip(group, parts, strict=True)}
    return chosen


def _chosen(importance: Tensor, which: str, share: float, generator: torch.Generator) -> Tensor:
    count = round(share * importance.numel())
    if which == "random":
        places = torch.randperm(importance.numel(), generator=generator)[:count]
    else:
        # Stable: of equal entries at the threshold, the first ones.
        places = importance.sort(stable=True, descending=which == "highest").indices[:count]
    chosen = torch.zeros(importance.numel(), dtype=torch.bool)
    chosen[places] = True
    return chosen


def pruned_accuracy(group: Group, strategy: str, ranked_over: str = "backbone") -> Value | None:
    """In percent, over the seeds for which it was measured."""
    events = (event for run in group.runs for event in run.events("pruning"))
    return Value.of(100 * e["test"] for e in events if (e["strategy"], e["ranked_over"]) == (strategy, ranked_over))


def pruning(runs: Iterable[StoredRun]) -> Table:
    """The paper's table: accuracy on the first task with some of the backbone's parameters set to zero."""
    groups = [group for group in gathered(runs).groups if any(run.events("pruning") for run in group.runs)]
    sequences = sorted({group.sequence for group in groups}, key=sequence_order)
    cells: list[tuple[Row, str, Value | None]] = []
    for system in dict.fromkeys(group.label[1:] for group in groups):
        for ranked_over in RANKINGS:
            for strategy in STRATEGIES:
                for group in groups:
                    value = _cell(group, strategy, ranked_over) if group.label[1:] == system else None
                    if value is not None:
                        cells.append(((strategy, ranked_over, *system), group.sequence, value))
    for group in groups:
        classes = next(event["classes"] for run in group.runs for event in run.events("pruning"))
        cells.append((("Chance", None, None, None, None), group.sequence, Value(100 / classes)))
    return Table(
        "Accuracy on the first task after pruning by importance, in percent",
        ("pruned", "ranked over", "method", "training", "changed", *sequences),
        pivot(cells, sequences),
        ["Right after the first task; weights and biases of the backbone are set to zero, the head is not changed."],
    )


def _cell(group: Group, strategy: str, ranked_over: str) -> Value | None:
    value = pruned_accuracy(group, strategy, ranked_over)
    if value is None or ranked_over != "backbone":
        return value
    # Also for runs of fewer tasks: only the first one counts here.
    return replace(value, paper=paper_value("pruning_accuracy_first_task", strategy, group.config.sequence))
