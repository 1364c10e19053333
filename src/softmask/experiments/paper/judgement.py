"""The paper's claims judged by a store: held, not held, or no data, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softmask.experiments.analyses.grouping import CHOSEN
from softmask.experiments.analyses.table import Row, Table
from softmask.experiments.paper.checks import ALL, Finding
from softmask.experiments.paper.claims import CLAIMS, Claim
from softmask.experiments.paper.evidence import Key, Numbers, paper_numbers, store_numbers
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.runs.store import StoredRun

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
    """Whether no seed behind a number failed: the seeds left may be the lucky ones."""
    missing: str = ""
    """Runs without which there is no data."""

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
