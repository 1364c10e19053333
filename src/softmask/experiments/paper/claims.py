"""Each comparative sentence of the paper as a predicate: held, not held, or no data, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softmask.experiments.analyses.grouping import CHOSEN
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.paper.claim_checks import Finding
from softmask.experiments.paper.evidence import Numbers, paper_numbers, store_numbers
from softmask.experiments.paper.paper_claims import CLAIMS, Claim
from softmask.experiments.runs.store import StoredRun

HELD, NOT_HELD, NO_DATA = "held", "not held", "no data"
SHOWN = 3
ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a claim."""

    findings: tuple[Finding, ...]
    seeds: int | None = None
    """The fewest behind a number; None for the paper's own."""
    complete: bool = True
    """Whether no number lacks seeds that failed: those left may be the lucky ones."""

    @property
    def word(self) -> str:
        if not self.findings:
            return NO_DATA
        said = HELD if all(finding.holds for finding in self.findings) else NOT_HELD
        enough = self.seeds is None or self.seeds >= ENOUGH_SEEDS
        return said if enough and self.complete else f"{said} so far"

    @property
    def count(self) -> str:
        return f"{sum(finding.holds for finding in self.findings)} of {len(self.findings)}" if self.findings else ""

    def numbers(self) -> str:
        """What speaks against the claim; if nothing does, the first of what speaks for it."""
        told = [finding.text for finding in self.findings if not finding.holds] or [f.text for f in self.findings]
        more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
        return "; ".join(told[:SHOWN]) + more


def judge(claim: Claim, numbers: Numbers) -> Verdict:
    findings = tuple(claim.check(numbers))
    keys = {key for finding in findings for key in finding.keys}
    return Verdict(findings, numbers.fewest_seeds(keys), complete=not keys & numbers.partial)


def claims(runs: Iterable[StoredRun]) -> Table:
    """Every claim by every way of training in the store, beside what the paper's own numbers say."""
    paper, ours = paper_numbers(), store_numbers(runs)
    rows: list[tuple[Cell, ...]] = []
    for claim in CLAIMS:
        printed = judge(claim, paper)
        beside = f"{printed.word} {printed.count}".strip()
        for training, numbers in ours.items():
            found = judge(claim, numbers)
            told = (found.word, found.seeds, found.count or None, found.numbers() or None)
            rows.append((claim.sentence, claim.section, training, *told, beside, claim.name))
    rows.sort(key=lambda row: row[3] == NO_DATA)  # what can be said comes first
    return Table(
        "What the paper says, and what these runs say",
        ("claim", "section", "training", "verdict", "seeds", "comparisons", "numbers", "paper's own numbers", "name"),
        rows,
        (
            "A claim holds if every comparison that the runs allow holds; shown are those that do not, else the first. "
            "Seeds: the fewest behind a number; with fewer than three, or where some failed, it is so only so far. "
            f"{CHOSEN} Only whole sequences of the paper count. "
            "Words such as 'slightly' were given a number in the code.",
        ),
    )
