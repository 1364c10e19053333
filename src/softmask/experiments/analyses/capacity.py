"""How much of the network is blocked for good, and how much cross-head importance adds: facts kept at task ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from softmask.experiments.analyses.grouping import Group, finished_groups, milestones, sequence_order
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.runs.store import StoredRun

WHOLE = "whole network"
CROSS_HEAD = ("F-each", "G-each", "F-total", "G-total")


def facts_after(run: StoredRun, learned: int) -> dict[str, Any]:
    """What the method said of itself after so many tasks."""
    events = run.events("task")
    if learned <= len(events) and events[learned - 1]["task"] == learned - 1:  # as they stand in nearly every run
        return events[learned - 1].get("facts") or {}
    return next((event.get("facts") or {} for event in events if event["task"] == learned - 1), {})


def blocked_share(group: Group, part: str, learned: int) -> Value | None:
    """In percent."""
    shares = [blocked_parts(run, learned).get(part) for run in group.runs]
    return Value.of([100 * share for share in shares if share is not None])


def blocked_parts(run: StoredRun, learned: int) -> dict[str, float]:
    """By part of the network. A method from elsewhere may mean something else by the same word."""
    told = facts_after(run, learned).get("blocked")
    parts = told.items() if isinstance(told, Mapping) else ()
    return {part: share for part, share in parts if isinstance(share, (int, float))}


def parts_of(groups: Iterable[Group]) -> list[str]:
    """The whole network, then the layers in their order."""
    layers: dict[str, None] = {WHOLE: None}
    for group in groups:
        for part in blocked_parts(group.runs[0], 1):
            layers[part] = None
    return list(layers)


def capacity(runs: Iterable[StoredRun]) -> Table:
    """Share of parameters that nothing can change any more, after task 1, T/2 and T, whole network and by layer."""
    groups = [group for group in finished_groups(runs) if blocked_parts(group.runs[0], 1)]
    sequences = sorted({group.sequence for group in groups}, key=sequence_order)
    rows: list[tuple[Cell, ...]] = []
    for part in parts_of(groups):
        for label in ("1", "T/2", "T"):
            found: dict[tuple[str, str, str | None], dict[str, Value]] = {}
            for group in groups:
                learned = milestones(group.tasks).get(label)
                value = blocked_share(group, part, learned) if learned else None
                if value is not None:
                    paper = paper_blocked(part, label, group.title, group.sequence)
                    row = found.setdefault((group.title, group.training, group.changed), {})
                    row[group.sequence] = dataclasses.replace(value, paper=paper)
            rows += [(part, label, *key, *(row.get(name) for name in sequences)) for key, row in found.items()]
    return Table(
        "Completely blocked parameters, in percent",
        ("part", "after task", "method", "training", "changed", *sequences),
        rows,
        (
            "Blocked: importance exactly 1 (SPG), a weight between two units in use (HAT, CAT), a weight of a kept "
            "subnetwork (WSN), a module or column that is spent (PathNet, PGN). Of the backbone, weights and biases, "
            "heads excluded.",
        ),
        labels=3,
    )


def cross_head_value(facts: Iterable[Mapping[str, Any]], name: str, digits: int = 1) -> Value | None:
    """F or G over several runs, G over all parameters.

    The paper defines G as a mean over the cases of F, which is what a run keeps. Its numbers must be the mean over all:
    by the paper's own training on C-10 ours are then 0.16, 0.30, 0.34 (each) and 0.14, 0.06, 0.01 (total) beside its
    0.15, 0.31, 0.39 and 0.13, 0.04, 0.01; over the cases alone, G-total would be 0.28, 0.19, 0.06.
    """
    share = f"F{name[1:]}"
    known = [each for each in facts if all(isinstance(each.get(key), (int, float)) for key in (name, share))]
    return Value.of([each[name] if name == share else each[share] * each[name] for each in known], digits=digits)


def paper_blocked(part: str, label: str, title: str, sequence: str) -> float | None:
    cell = paper_tables()["blocked_share"].get(part, {}).get(label, {}).get(title, {}).get(sequence)
    return None if cell is None else float(cell["mean"])


def cross_head(runs: Iterable[StoredRun]) -> Table:
    """How often, and by how much, importance through old heads lies above the task's own and above all so far."""
    rows: list[tuple[Cell, ...]] = []
    for group in finished_groups(runs):
        for label, learned in milestones(group.tasks, first=2).items():
            facts = [facts_after(run, learned) for run in group.runs]
            values = {name: cross_head_value(facts, name, digits=2) for name in CROSS_HEAD}
            if any(value is not None for value in values.values()):
                cells = [_beside(value, group, label, name) for name, value in values.items()]
                rows.append((group.sequence, label, group.title, group.training, group.changed, *cells))
    return Table(
        "What cross-head importance adds, as fractions",
        ("sequence", "task", "method", "training", "changed", *CROSS_HEAD),
        rows,
        (
            "F: share of parameters whose importance through an old head is the larger; G: by how much, on average "
            "over all parameters, with zero where it is not larger (the paper's text means G / F, the average over the "
            "others alone; its numbers do not). Each: than through the task's own head; total: than all "
            "that was accumulated before the task.",
        ),
        labels=3,
    )


def paper_cross_head(sequence: str, label: str, name: str) -> float | None:
    cell = paper_tables()["cross_head_importance_fraction"].get(sequence, {}).get(label, {}).get(name)
    return None if cell is None else float(cell["mean"])


def _beside(value: Value | None, group: Group, label: str, name: str) -> Value | None:
    if value is None or group.title != "SPG" or not group.whole:
        return value
    return dataclasses.replace(value, paper=paper_cross_head(group.sequence, label, name))
