"""Does importance say what matters? The first task again, with parts of the backbone set to zero."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.grouping import Group, finished_groups, sequence_order
from softmask.experiments.analyses.revival import revived
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.paper.published import paper_value
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
"""As the paper names them: which parameters, and what share of them."""
METHODS = ("spg", "spg-no-chi", "spg-no-smh")
"""Methods with importance by gradients; after the first task they are the same but for the head's rate later."""
RANKINGS = ("backbone", "layer")


def measure_pruning(run: StoredRun, store: Store, data: Path | None, ranked_over: str = "backbone") -> bool:
    """Adds what is missing to the run's events; returns whether there was anything. Needs the checkpoint of task 1."""
    known = {event["strategy"] for event in run.events("pruning") if event["ranked_over"] == ranked_over}
    missing = [name for name in STRATEGIES if name not in known]
    if not missing:
        return False
    method, sequence = revived(run, learned=1, data=data)
    if not isinstance(method, SPG):
        raise SoftmaskError(f"{run.config.method} keeps no importance by gradients: {', '.join(METHODS)} do")
    with store.open(run.config) as writer:
        for name in missing:
            which, share = STRATEGIES[name]
            reached = accuracy_when_pruned(method, sequence.tests[0], which, share, ranked_over)
            writer.event("pruning", strategy=name, ranked_over=ranked_over, test=reached, classes=sequence.classes[0])
    return True


@torch.no_grad()
def accuracy_when_pruned(method: SPG, test: Batches, which: str, share: float, ranked_over: str = "backbone") -> float:
    """Share of right answers on the first task; the method is left as it was."""
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
    """For every tensor, which of its entries go: exactly the share of the backbone, or of each layer, rounded."""
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
        # Stable: of equals at the edge, those that stand first.
        places = importance.sort(stable=True, descending=which == "highest").indices[:count]
    chosen = torch.zeros(importance.numel(), dtype=torch.bool)
    chosen[places] = True
    return chosen


def pruned_accuracy(group: Group, strategy: str, ranked_over: str = "backbone") -> Value | None:
    """In percent, over the seeds for which it was measured."""
    return Value.of([100 * event["test"] for event in _events(group, strategy, ranked_over)])


def _events(group: Group, strategy: str, ranked_over: str) -> list[dict[str, Any]]:
    events = (event for run in group.runs for event in run.events("pruning"))
    return [event for event in events if event["strategy"] == strategy and event["ranked_over"] == ranked_over]


def pruning(runs: Iterable[StoredRun]) -> Table:
    """The paper's table: accuracy on the first task with some of the backbone's parameters set to zero."""
    groups = [group for group in finished_groups(runs) if any(run.events("pruning") for run in group.runs)]
    sequences = sorted({group.sequence for group in groups}, key=sequence_order)
    rows: list[tuple[Cell, ...]] = []
    for key in dict.fromkeys((group.title, group.training, group.changed) for group in groups):
        members = {g.sequence: g for g in groups if (g.title, g.training, g.changed) == key}
        for ranked_over in RANKINGS:
            for strategy in STRATEGIES:
                cells = [_cell(members.get(sequence), strategy, ranked_over) for sequence in sequences]
                if any(cell is not None for cell in cells):
                    rows.append((strategy, ranked_over, *key, *cells))
    for sequence_cells in _chance(groups, sequences):
        rows.append(("Chance", None, None, None, None, *sequence_cells))
    return Table(
        "Accuracy on the first task after pruning by importance, in percent",
        ("pruned", "ranked over", "method", "training", "changed", *sequences),
        rows,
        ("After the first task alone; weights and biases of the backbone are set to zero, the head is not touched.",),
    )


def _cell(group: Group | None, strategy: str, ranked_over: str) -> Value | None:
    value = pruned_accuracy(group, strategy, ranked_over) if group else None
    if group is None or value is None or ranked_over != "backbone":
        return value
    # However many tasks the run went on to learn: the table is about the first.
    paper = paper_value("pruning_accuracy_first_task", strategy, group.config.sequence)
    return dataclasses.replace(value, paper=paper)


def _chance(groups: list[Group], sequences: list[str]) -> list[list[Value | None]]:
    classes = {
        group.sequence: event["classes"] for group in groups for run in group.runs for event in run.events("pruning")
    }
    return [[Value(100 / classes[sequence]) for sequence in sequences]] if classes else []
