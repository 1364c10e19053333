"""Our numbers against the paper's: a verdict where one may be given, else whether the order is the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softmask.experiments.analyses.grouping import UNRANKED, training_name
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.sequences import sequence_facts
from softmask.learning.method_registry import METHODS

SEEDS_FOR_A_VERDICT = 3
POINTS = 1.0
"""Where the paper's own spread is small, ours may lie so far away: a percentage point."""
ROWS_FOR_AN_ORDER = 3


class Place(NamedTuple):
    """What a cell of one of our tables is about, and where `softmask.experiments.paper.published` has the same."""

    what: str
    title: str
    sequence: str
    path: tuple[str, ...]


Layout = Callable[[Sequence[Cell], str], Place]
"""From a row and the name of a column."""


@dataclass(frozen=True)
class Comparison:
    """One number of ours beside the paper's."""

    place: Place
    ours: Value
    paper: Value
    unit: float = 1.0
    """What a percentage point is: 1 where numbers are percentages, 0.01 where they are fractions."""
    reason: str | None = None
    """Why it may not be judged, whatever the number of seeds."""

    @property
    def judged(self) -> bool:
        return self.reason is None and self.seeds >= SEEDS_FOR_A_VERDICT

    @property
    def seeds(self) -> int:
        """Those that have this very number: not every run has its reference, or was measured further."""
        return self.ours.count

    @property
    def allowed(self) -> float:
        return max(2 * (self.paper.std or 0.0), POINTS * self.unit)

    @property
    def held(self) -> bool:
        return abs(self.ours.mean - self.paper.mean) <= self.allowed + 1e-9

    def verdict(self) -> str:
        if self.reason is not None:
            return f"none: {self.reason}"
        if self.seeds < SEEDS_FOR_A_VERDICT:
            return f"none: {self.seeds} of at least {SEEDS_FOR_A_VERDICT} seeds"
        return "held" if self.held else "not held"


def compare(table: Table, layout: Layout, configs: Iterable[RunConfig], unit: float = 1.0) -> Iterator[Comparison]:
    """Every cell of a table that the paper has, too; `configs` are those of the runs behind it."""
    reasons = why_no_verdict(configs)
    for row in table.rows:
        for column, cell in zip(table.columns, row, strict=True):
            if isinstance(cell, Value) and cell.paper is not None:
                place = layout(row, column)
                published = published_value(place.path)
                if published is not None:
                    ours = dataclasses.replace(cell, paper=None, rank=None, footnotes=())
                    paper = dataclasses.replace(published, digits=cell.digits, signed=cell.signed)
                    yield Comparison(place, ours, paper, unit, reasons.get((place.title, place.sequence)))


def published_value(path: Sequence[str]) -> Value | None:
    cell: Any = paper_tables()
    for name in path:
        cell = cell.get(name) if isinstance(cell, Mapping) else None
    if isinstance(cell, Mapping):
        return Value(cell["mean"], cell.get("std")) if "mean" in cell else None
    return None if cell is None else Value(float(cell))


def why_no_verdict(configs: Iterable[RunConfig]) -> dict[tuple[str, str], str]:
    """By title and sequence. The paper's numbers speak of its own training, network and number of tasks; one method
    that was run otherwise takes nothing from the others."""
    found: dict[tuple[str, str], str] = {}
    for config in configs:
        if (reason := _unlike_the_paper(config)) is not None:
            found.setdefault((METHODS.load(config.method).title, config.sequence), reason)
    return found


def _unlike_the_paper(config: RunConfig) -> str | None:
    if (training := training_name(config.training)) != "paper":
        return f"the training is not the paper's ({training})"
    if config.tasks is not None:
        return f"only {config.tasks} tasks were learned"
    if config.network.width != sequence_facts(config.sequence).width:
        return f"the network has {config.network.width} of its width"
    return None


def verdicts(comparisons: Sequence[Comparison]) -> Table:
    """One row for each cell. Where one reason forbids to judge any, it is told once and the column stays empty."""
    reasons = {each.reason for each in comparisons}
    reason = reasons.pop() if len(reasons) == 1 else None
    rows: list[tuple[Cell, ...]] = [
        (
            *(each.place.sequence, each.place.what, each.ours, each.paper),
            # With one more digit than the numbers: what decides must be seen.
            Value(each.ours.mean - each.paper.mean, digits=1 + each.ours.digits, signed=True),
            None if each.reason else Value(each.allowed, digits=1 + each.ours.digits),
            each.seeds,
            None if reason else each.verdict(),
        )
        for each in comparisons
    ]
    held = [each.held for each in comparisons if each.judged]
    notes = [
        "Held: not further from the paper than twice its standard deviation, or one point if that is more. "
        f"Judged from {SEEDS_FOR_A_VERDICT} seeds on, with the paper's training."
    ]
    notes.append(f"No verdict: {reason}." if reason else f"{sum(held)} of {len(held)} judged cells held.")
    columns = ("sequence", "what", "ours", "paper", "difference", "allowed", "seeds", "verdict")
    return Table("Ours and the paper's", columns, rows, tuple(notes), labels=2)


def orders(comparisons: Sequence[Comparison]) -> Table:
    """For each sequence, whether our numbers stand in the paper's order; ONE and MTL stand outside of it."""
    by_sequence: dict[str, list[Comparison]] = {}
    for each in comparisons:
        if each.place.title in UNRANKED:
            continue
        by_sequence.setdefault(each.place.sequence, []).append(each)
    rows: list[tuple[Cell, ...]] = []
    for sequence, members in by_sequence.items():
        found = rank_correlation([m.ours.mean for m in members], [m.paper.mean for m in members])
        if found is not None:
            rows.append((sequence, len(members), Value(found, digits=2, signed=True)))
    note = "Spearman's correlation over the rows of each sequence: +1 is the paper's order, -1 its reverse."
    return Table("Rank correlation with the paper", ("sequence", "rows", "correlation"), rows, (note,))


def rank_correlation(ours: Sequence[float], paper: Sequence[float]) -> float | None:
    """Spearman's, equals sharing their ranks. None where there is no order to compare."""
    if len(ours) < ROWS_FOR_AN_ORDER:
        return None
    left, right = _ranks(ours), _ranks(paper)
    middle = (len(left) + 1) / 2
    products = sum((a - middle) * (b - middle) for a, b in zip(left, right, strict=True))
    spread = sum((a - middle) ** 2 for a in left) * sum((b - middle) ** 2 for b in right)
    return products / spread**0.5 if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    below = [sum(other < value for other in values) for value in values]
    equal = [sum(other == value for other in values) for value in values]
    return [count + (same + 1) / 2 for count, same in zip(below, equal, strict=True)]
