"""How many parameters every method learns on every sequence of the paper, beside the paper's own table."""

from __future__ import annotations

import functools
from collections.abc import Collection

from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.paper.published import paper_tables, paper_value
from softmask.learning.method_registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.methods.cat import CAT

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
HANDWRITTEN = ("FE-10", "FE-20")

REASONS = {
    "ONE": "one network, as the paper counts, although there is one for each task.",
    "PGN": "the columns' width follows a rule that fits all nine cells; the paper does not say how it chose it.",
    "PathNet": "the modules' width was solved for each cell: that it agrees says nothing about the paper's choice.",
    "WSN": "weights without biases and without scores. Where the paper is lower it may count only weights in use.",
    "SupSup": "one score for each weight and task, heads included.",
    "CAT": "all modules of its authors' code but one layer that would not fit; some of these are never used.",
}


def network_size(methods: Collection[str] = ()) -> Table:
    """Two rows for each method, or each of those named: our count, and the paper's, in millions, if it has one."""
    scenarios = {name: paper_scenario(name) for name in paper_tables()["sequences"]}
    rows: list[tuple[Cell, ...]] = []
    notes = ["Counted at full width over all tasks, heads included; agreement is judged at 0.1 million."]
    for name in (name for name in METHODS.names() if not methods or name in methods):
        method = METHODS.load(name)
        try:
            counts = {sequence: learnable(name, sequence) for sequence in scenarios}
        except Exception as error:
            if method.__module__.startswith("softmask."):
                raise
            # Shapes without memory are not enough for a `build` that looks at numbers.
            notes.append(f"{method.title} cannot be counted: {type(error).__name__}: {error}")
            continue
        paper = {sequence: paper_value("network_size_millions", method.title, sequence) for sequence in scenarios}
        rows.append((method.title, "parameters", *counts.values()))
        if method.title in paper_tables()["network_size_millions"]:
            rows.append((method.title, "paper, millions", *paper.values()))
            notes += _remarks(method.title, [s for s in scenarios if not agrees(counts[s], paper[s])])
    if methods and "cat" not in methods:
        return Table("Learnable parameters", ("method", "counted", *scenarios), rows, tuple(notes))
    used = ", ".join(f"{name} {CAT.used_parameters(scenario):,}" for name, scenario in scenarios.items())
    notes.append(f"CAT without what is never used: {used}.")
    return Table("Learnable parameters", ("method", "counted", *scenarios), rows, tuple(notes))


@functools.cache
def learnable(method: str, sequence: str) -> int:
    """How many numbers a method learns on a sequence of the paper; to count them it must be built."""
    return METHODS.load(method).learnable(paper_scenario(sequence))


@functools.cache
def paper_scenario(sequence: str) -> Scenario:
    """The scenario that a sequence of the paper poses, without its data."""
    facts = paper_tables()["sequences"][sequence]
    return Scenario(GREY if sequence in HANDWRITTEN else COLOUR, (facts["classes_per_task"],) * facts["tasks"])


def agrees(count: int, millions: float | None) -> bool:
    """Whether the count rounds to what the paper prints; nothing printed cannot be wrong."""
    return millions is None or f"{count / 1e6:.1f}" == f"{millions:.1f}"


def _remarks(title: str, different: list[str]) -> list[str]:
    reason = REASONS.get(title, "")
    if different:
        return [f"{title} differs from the paper on {', '.join(different)}: {reason or 'no reason known.'}"]
    return [f"{title}: {reason}"] if reason else []
