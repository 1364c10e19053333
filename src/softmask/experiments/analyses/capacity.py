"""Blocked parameters and cross-head importance, from the facts stored at the end of each task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from softmask.experiments.analyses.grouping import Group, gathered, milestones, sequence_order
from softmask.experiments.analyses.table import Row, Table, Value, pivot
from softmask.experiments.paper import paper_tables
from softmask.experiments.runs.store import StoredRun

WHOLE = "whole network"
CROSS_HEAD = ("F-each", "G-each", "F-total", "G-total")


def facts_after(run: StoredRun, learned: int) -> Mapping[str, Any]:
    """Facts that the method stored after the first `learned` tasks."""
    return next((event.get("facts") or {} for event in run.events("task") if event["task"] == learned - 1), {})


def blocked_parts(run: StoredRun, learned: int) -> dict[str, float]:
    """Blocked share by part of the network. A method of another package may store anything under this name."""
    stored = facts_after(run, learned).get("blocked")
    parts = stored.items() if isinstance(stored, Mapping) else ()
    return {part: share for part, share in parts if _is_share(share)}


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1


def blocked_share(group: Group, part: str, learned: int) -> Value | None:
    """In percent."""
    shares = [blocked_parts(run, learned).get(part) for run in group.runs]
    return Value.of(100 * share for share in shares if share is not None)


def parts_of(groups: Iterable[Group]) -> list[str]:
    """The whole network, then the layers in their order."""
    return list(dict.fromkeys([WHOLE, *(part for group in groups for part in blocked_parts(group.runs[0], 1))]))


def capacity(runs: Iterable[StoredRun]) -> Table:
    """Share of completely blocked parameters after task 1, T/2 and T, of the whole network and by layer."""
    groups = [group for group in gathered(runs).groups if blocked_parts(group.runs[0], 1)]
    sequences = sorted({group.sequence for group in groups}, key=sequence_order)
    cells: list[tuple[Row, str, Value]] = []
    for part in parts_of(groups):
        for label in ("1", "T/2", "T"):
            for group in groups:
                learned = milestones(group.tasks).get(label)
                value = blocked_share(group, part, learned) if learned else None
                if value is not None:
                    value = replace(value, paper=paper_blocked(part, label, group.title, group.sequence))
                    cells.append(((part, label, *group.label[1:]), group.sequence, value))
    note = (
        "Blocked: importance exactly 1 (SPG), a weight between two units in use (HAT, CAT), a weight of a kept "
        "subnetwork (WSN), a module or column that is used up (PathNet, PGN). Of the backbone, weights and biases, "
        "heads excluded."
    )
    columns = ("part", "after task", "method", "training", "changed", *sequences)
    return Table("Completely blocked parameters, in percent", columns, pivot(cells, sequences), [note], labels=3)


def paper_blocked(part: str, label: str, title: str, sequence: str) -> float | None:
    cell = paper_tables()["blocked_share"].get(part, {}).get(label, {}).get(title, {}).get(sequence)
    return None if cell is None else float(cell["mean"])


def cross_head(runs: Iterable[StoredRun]) -> Table:
    """How often, and by how much, importance through old heads exceeds the task's own and the accumulated one."""
    rows: list[Row] = []
    for group in gathered(runs).groups:
        for label, learned in milestones(group.tasks, first=2).items():
            facts = [facts_after(run, learned) for run in group.runs]
            values = {name: cross_head_value(facts, name, digits=2) for name in CROSS_HEAD}
            if any(value is not None for value in values.values()):
                cells = [_beside(value, group, label, name) for name, value in values.items()]
                rows.append((group.sequence, label, *group.label[1:], *cells))
    note = (
        "F: share of parameters whose importance through an old head is the larger one; G: by how much, on average "
        "over all parameters, with zero where it is not larger (the paper's text defines G as the average over the "
        "others alone, which is G / F; its numbers are not that). Each: larger than through the task's own head; "
        "total: larger than all importance accumulated before the task."
    )
    columns = ("sequence", "task", "method", "training", "changed", *CROSS_HEAD)
    return Table("Effect of cross-head importance, as fractions", columns, rows, [note], labels=3)


def cross_head_value(facts: Iterable[Mapping[str, Any]], name: str, digits: int = 1) -> Value | None:
    """F or G over several runs, G over all parameters.

    The paper defines G as a mean over the cases of F, which is what a run stores. Its numbers must be the mean over
    all: by the paper's own training on C-10 ours are then 0.16, 0.30, 0.34 (each) and 0.14, 0.06, 0.01 (total) beside
    its 0.15, 0.31, 0.39 and 0.13, 0.04, 0.01; over the cases alone, G-total would be 0.28, 0.19, 0.06.
    """
    share = f"F{name[1:]}"
    known = [each for each in facts if all(_is_share(each.get(key)) for key in (name, share))]
    return Value.of((each[name] if name == share else each[share] * each[name] for each in known), digits=digits)


def paper_cross_head(sequence: str, label: str, name: str) -> float | None:
    cell = paper_tables()["cross_head_importance_fraction"].get(sequence, {}).get(label, {}).get(name)
    return None if cell is None else float(cell["mean"])


def _beside(value: Value | None, group: Group, label: str, name: str) -> Value | None:
    if value is None or group.title != "SPG" or not group.whole:
        return value
    return replace(value, paper=paper_cross_head(group.sequence, label, name))
