"""The paper's numbers and claims against ours: held, not held, or no data; else the rank correlation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from softmask.experiments.analyses.grouping import CHOSEN, UNRANKED, method_title, network_label, training_name
from softmask.experiments.analyses.table import Cell, Row, Table, Value, rank_correlation
from softmask.experiments.paper import paper_tables
from softmask.experiments.paper.checks import ALL, Finding
from softmask.experiments.paper.claims import CLAIMS, Claim
from softmask.experiments.paper.evidence import Key, Numbers, paper_numbers, store_numbers
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.store import StoredRun
from softmask.experiments.sequences import sequence_facts

SEEDS_FOR_A_VERDICT = 3
POINTS = 1.0
"""Allowed distance, in percentage points, where the paper's own spread is small."""


class Place(NamedTuple):
    """The meaning of a cell of one of our tables, and its path in the paper's tables."""

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
    """Size of a percentage point: 1 for percentages, 0.01 for fractions."""
    reason: str | None = None
    """The reason why it cannot be judged with any number of seeds."""

    @property
    def judged(self) -> bool:
        return self.reason is None and self.seeds >= SEEDS_FOR_A_VERDICT

    @property
    def seeds(self) -> int:
        """Seeds that have this number: not every run has its reference."""
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
    """Every cell of a table that the paper has as well; `configs` are those of the runs behind it."""
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
    """By title and sequence: runs with another training, network or number of tasks than the paper's. One method that
    was run differently does not affect the others."""
    found: dict[tuple[str, str], str] = {}
    for config in configs:
        if (reason := _unlike_the_paper(config)) is not None:
            found.setdefault((method_title(config.method), config.sequence), reason)
    return found


def _unlike_the_paper(config: RunConfig) -> str | None:
    if (training := training_name(config.training)) != "paper":
        return f"the training is not the paper's ({training})"
    if config.tasks is not None:
        return f"only the first {config.tasks} tasks were learned"
    if (network := network_label(config)) is not None:
        return f"the network is not the paper's ({network})"
    if config.network.width != sequence_facts(config.sequence).width:
        return f"the network has {config.network.width} of the paper's width"
    return None


def verdicts(comparisons: Sequence[Comparison]) -> Table:
    """One row for each cell. A reason that holds for all of them is a note instead of a column."""
    reasons = {each.reason for each in comparisons}
    reason = reasons.pop() if len(reasons) == 1 else None
    rows: list[Row] = [
        (
            *(each.place.sequence, each.place.what, each.ours, each.paper),
            # One more digit than the numbers, so that a verdict can be checked.
            Value(each.ours.mean - each.paper.mean, digits=1 + each.ours.digits, signed=True),
            None if each.reason else Value(each.allowed, digits=1 + each.ours.digits),
            each.seeds,
            None if reason else each.verdict(),
        )
        for each in comparisons
    ]
    held = [each.held for each in comparisons if each.judged]
    notes = [
        "Held: within twice the paper's standard deviation, or one point if that is more. "
        f"Judged from {SEEDS_FOR_A_VERDICT} seeds on, with the paper's training."
    ]
    notes.append(f"No verdict: {reason}." if reason else f"{sum(held)} of {len(held)} judged cells held.")
    columns = ("sequence", "what", "ours", "paper", "difference", "allowed", "seeds", "verdict")
    return Table("Ours and the paper's", columns, rows, tuple(notes), labels=2)


def orders(comparisons: Sequence[Comparison]) -> Table:
    """Rank correlation of our numbers with the paper's on each sequence, without ONE and MTL."""
    by_sequence: dict[str, list[Comparison]] = {}
    for each in comparisons:
        if each.place.title in UNRANKED:
            continue
        by_sequence.setdefault(each.place.sequence, []).append(each)
    rows: list[Row] = []
    for sequence, members in by_sequence.items():
        found = rank_correlation([m.ours.mean for m in members], [m.paper.mean for m in members])
        if found is not None:
            rows.append((sequence, len(members), Value(found, digits=2, signed=True)))
    note = "Spearman's correlation over the rows of each sequence: +1 is the paper's order, -1 its reverse."
    return Table("Rank correlation with the paper", ("sequence", "rows", "correlation"), rows, (note,))


HELD, NOT_HELD, NO_DATA = "held", "not held", "no data"
SHOWN = 3
ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Judgement:
    """A claim judged by one set of numbers."""

    findings: tuple[Finding, ...]
    seeds: int | None = None
    """The fewest behind a number; None for the paper's own."""
    complete: bool = True
    """Whether no seed behind a number failed, since the remaining seeds may be biased."""
    missing: str = ""
    """Runs without which there is no data."""

    @property
    def word(self) -> str:
        if not self.findings:
            return NO_DATA
        verdict = HELD if all(finding.holds for finding in self.findings) else NOT_HELD
        enough = self.seeds is None or self.seeds >= ENOUGH_SEEDS
        return verdict if enough and self.complete else f"{verdict} so far"

    @property
    def count(self) -> str:
        return f"{sum(finding.holds for finding in self.findings)} of {len(self.findings)}" if self.findings else ""

    def shown(self) -> list[Finding]:
        """The comparisons against the claim; if there are none, those for it."""
        return [finding for finding in self.findings if not finding.holds] or list(self.findings)

    def numbers(self) -> str:
        texts = [finding.text for finding in self.shown()]
        more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        return "; ".join(texts[:SHOWN]) + more or self.missing


def judge(claim: Claim, numbers: Numbers) -> Judgement:
    numbers.missing.clear()
    findings = tuple(claim.check(numbers))
    keys = {key for finding in findings for key in finding.keys}
    missing = "" if findings else _missing(numbers.missing)
    return Judgement(findings, numbers.fewest_seeds(keys), not keys & numbers.partial, missing)


def _missing(keys: Iterable[Key]) -> str:
    """Systems and sequences, in the paper's order."""
    measures, titles, sequences = (sorted({key[i] for key in keys}, key=_order) for i in range(3))
    listed = ", ".join(titles[:SHOWN]) + (f" and {len(titles) - SHOWN} more" if len(titles) > SHOWN else "")
    where = "any sequence of the paper" if set(ALL) <= set(sequences) else " or ".join(sequences)
    return f"missing: {' and '.join(measures)} of {listed} on {where}" if titles else ""


def _order(name: str) -> int:
    known = (*paper_tables()["accuracy"], *ALL)
    return known.index(name) if name in known else len(known)


def claims(runs: Iterable[StoredRun]) -> Table:
    """Every claim by every training in the store, beside the judgement of the paper's own numbers."""
    paper, ours = paper_numbers(), store_numbers(runs)
    rows: list[Row] = []
    for claim in CLAIMS:
        printed = judge(claim, paper)
        beside = f"{printed.word} {printed.count}".strip()
        found = {training: judge(claim, numbers) for training, numbers in ours.items()}
        if not any(each.findings for each in found.values()):
            found = {"": next(iter(found.values()), judge(claim, Numbers({})))}
        for training, each in found.items():
            if each.findings or not training:
                cells = (each.word, each.seeds, each.count or None, each.numbers() or None)
                rows.append((claim.sentence, claim.section, training or None, *cells, beside, claim.name))
    rows.sort(key=lambda row: row[3] == NO_DATA)
    note = (
        "A claim holds if every comparison that the runs allow holds; the numbers are of those that do not, else of "
        "the first ones. Seeds: the fewest behind a number; with fewer than three, or where some failed, a verdict is "
        f"preliminary (so far). {CHOSEN} Only whole sequences of the paper count. Words such as 'slightly' are "
        "numbers in the code."
    )
    columns = ("claim", "section", "training", "verdict", "seeds", "comparisons", "numbers", "paper's numbers", "name")
    return Table("Claims of the paper, judged by these runs", columns, rows, [note])
