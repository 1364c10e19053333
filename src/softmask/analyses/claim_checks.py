"""What claims are made of: comparisons that the numbers at hand allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softmask.analyses.capacity import WHOLE
from softmask.analyses.evidence import Key, Numbers
from softmask.paper import paper_tables

DISSIMILAR = ("C-10", "C-20", "T-10", "T-20", "I-100")
SIMILAR = ("FC-10", "FC-20", "FE-10", "FE-20")
ALL = DISSIMILAR + SIMILAR
CONTINUAL = tuple(title for title in paper_tables()["accuracy"] if title not in ("MTL", "ONE"))
MILESTONES = ("1", "T/2", "T")


@dataclass(frozen=True)
class Finding:
    """One comparison with its numbers."""

    text: str
    holds: bool


Check = Callable[[Numbers], list[Finding]]
"""All comparisons that the numbers allow; none where they are missing."""


def above(
    measure: str, winners: Sequence[str], losers: Sequence[str], sequences: Sequence[str], by: float = 0.0, *more: str
) -> Check:
    """Every winner has more than every loser, on every sequence; for the paper's numbers equal as printed is enough."""

    def check(numbers: Numbers) -> list[Finding]:
        return [
            finding
            for sequence in sequences
            for winner in winners
            for loser in losers
            if winner != loser
            and (finding := compare(numbers, (measure, winner, sequence, *more), (measure, loser, sequence, *more), by))
        ]

    return check


def compare(numbers: Numbers, larger: Key, smaller: Key, by: float = 0.0) -> Finding | None:
    first, second = numbers.get(*larger), numbers.get(*smaller)
    if first is None or second is None:
        return None
    if by:
        holds = round(first, 2) > round(second + by, 2)
    else:
        holds = round(first, 1) >= round(second, 1) if numbers.printed else first > second
    return Finding(f"{' '.join(larger[1:])} {first:.1f}, {' '.join(smaller[1:2] + smaller[3:])} {second:.1f}", holds)


def within(measure: str, titles: Sequence[str], sequences: Sequence[str], low: float, high: float) -> Check:
    """The number itself lies between two bounds."""

    def check(numbers: Numbers) -> list[Finding]:
        found = [(t, s, numbers.get(measure, t, s)) for s in sequences for t in titles]
        return [
            Finding(f"{title} {sequence} {measure} {value:+.1f}", low <= round(value, 2) <= high)
            for title, sequence, value in found
            if value is not None
        ]

    return check


def on_average(
    measure: str, winners: Sequence[str], losers: Sequence[str], sequences: Sequence[str], by: float = 0.0
) -> Check:
    """More on average over the sequences that both have, of which there must be at least two."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for winner in winners:
            for loser in losers:
                pairs = [(numbers.get(measure, winner, s), numbers.get(measure, loser, s)) for s in sequences]
                both = [(a, b) for a, b in pairs if a is not None and b is not None]
                if winner != loser and len(both) >= 2:
                    first, second = (sum(values) / len(both) for values in zip(*both, strict=True))
                    text = f"{winner} {first:.1f}, {loser} {second:.1f} on average over {len(both)}"
                    findings.append(Finding(text, first > second + by))
        return findings

    return check


def close(measure: str, pairs: Sequence[tuple[str, str]], sequences: Sequence[str], limit: float) -> Check:
    """Two systems differ by less than the limit."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for one, other in pairs:
            for sequence in sequences:
                first, second = numbers.get(measure, one, sequence), numbers.get(measure, other, sequence)
                if first is not None and second is not None:
                    text = f"{one} {sequence} {first:.1f}, {other} {second:.1f}"
                    findings.append(Finding(text, abs(first - second) <= limit))
        return findings

    return check


def both(*checks: Check) -> Check:
    return lambda numbers: [finding for check in checks for finding in check(numbers)]


def best_in_most(numbers: Numbers) -> list[Finding]:
    wins = []
    for sequence in DISSIMILAR:
        known = {title: value for title in CONTINUAL if (value := numbers.get("ACC", title, sequence)) is not None}
        if "SPG" in known and len(known) > 1:
            wins.append(known["SPG"] >= max(known.values()))
    return [Finding(f"SPG is best on {sum(wins)} of {len(wins)} sequences", sum(wins) > len(wins) / 2)] if wins else []


def blocked(larger: tuple[str, str], smaller: tuple[str, str], labels: tuple[str, ...] = MILESTONES) -> Check:
    """(system, part) against (system, part), on all sequences."""

    def check(numbers: Numbers) -> list[Finding]:
        pairs = (
            compare(numbers, ("blocked", larger[0], s, larger[1], at), ("blocked", smaller[0], s, smaller[1], at))
            for s in ALL
            for at in labels
        )
        return [finding for finding in pairs if finding is not None]

    return check


def grows(numbers: Numbers) -> list[Finding]:
    found = (
        compare(numbers, ("blocked", title, s, WHOLE, later), ("blocked", title, s, WHOLE, earlier))
        for title in ("SPG", "HAT")
        for s in ALL
        for earlier, later in (("1", "T/2"), ("T/2", "T"))
    )
    return [finding for finding in found if finding is not None]


def pruning(numbers: Numbers) -> list[Finding]:
    found = (
        compare(numbers, ("pruned", "SPG", s, f"{more} {share}%"), ("pruned", "SPG", s, f"{less} {share}%"))
        for s in ALL
        for share in (10, 20)
        for more, less in (("Lowest", "Random"), ("Random", "Highest"))
    )
    return [finding for finding in found if finding is not None]


def near_chance(numbers: Numbers) -> list[Finding]:
    """Within ten points of chance, after the highest 20 % are gone."""
    findings = []
    for sequence in ALL:
        left, chance = (
            numbers.get("pruned", "SPG", sequence, "Highest 20%"),
            100 / paper_tables()["sequences"][sequence]["classes_per_task"],
        )
        if left is not None:
            findings.append(Finding(f"{sequence} {left:.1f}, chance {chance:.1f}", left <= chance + 10))
    return findings


def _learned(numbers: Numbers, title: str, sequence: str) -> list[float]:
    """Representation accuracies over 0, 1, 2, ... learned tasks."""
    found: list[float] = []
    while (value := numbers.get("representation", title, sequence, str(len(found)))) is not None:
        found.append(value)
    return found


def better_features(numbers: Numbers) -> list[Finding]:
    findings = []
    for sequence in ALL:
        spg = _learned(numbers, "SPG", sequence)
        for other in ("NCL", "HAT", "WSN"):
            theirs = _learned(numbers, other, sequence)
            if spg and theirs:
                text = f"after {sequence}: SPG {spg[-1]:.1f}, {other} {theirs[-1]:.1f}"
                findings.append(Finding(text, spg[-1] > theirs[-1]))
    return findings


def hat_features_fall(numbers: Numbers) -> list[Finding]:
    curves = {sequence: _learned(numbers, "HAT", sequence) for sequence in ("C-10",)}
    return [
        Finding(f"after {s}: HAT {curve[1]:.1f} with one task, {curve[-1]:.1f} with all", curve[-1] < curve[1])
        for s, curve in curves.items()
        if len(curve) > 2
    ]


def cross_head_adds(numbers: Numbers) -> list[Finding]:
    found = [(s, at, numbers.get("cross-head", "SPG", s, at, "F-total")) for s in ALL for at in ("2", "T/2", "T")]
    return [Finding(f"{s} task {at}: F-total {value:.2f}", value > 0) for s, at, value in found if value is not None]


def smaller_gaps(numbers: Numbers) -> list[Finding]:
    findings = []
    for name in ("G-each", "G-total"):
        means = []
        for kind in (SIMILAR, DISSIMILAR):
            values = [numbers.get("cross-head", "SPG", s, at, name) for s in kind for at in ("2", "T/2", "T")]
            known = [value for value in values if value is not None]
            means.append(sum(known) / len(known) if known else None)
        if means[0] is not None and means[1] is not None:
            findings.append(Finding(f"{name}: similar {means[0]:.2f}, dissimilar {means[1]:.2f}", means[0] < means[1]))
    return findings
