"""What claims are made of: comparisons that the numbers at hand allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from softmask.experiments.analyses.capacity import WHOLE
from softmask.experiments.paper.evidence import Key, Numbers
from softmask.experiments.paper.published import paper_tables

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
    keys: tuple[Key, ...]
    """The numbers that were compared."""


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
    text = f"{' '.join(larger[1:])} {first:.1f}, {' '.join(smaller[1:2] + smaller[3:])} {second:.1f}"
    return Finding(text, holds, (larger, smaller))


def within(measure: str, titles: Sequence[str], sequences: Sequence[str], low: float, high: float) -> Check:
    """The number itself lies between two bounds."""

    def check(numbers: Numbers) -> list[Finding]:
        return [
            Finding(f"{key[1]} {key[2]} {measure} {value:+.1f}", low <= round(value, 2) <= high, (key,))
            for key in ((measure, title, sequence) for sequence in sequences for title in titles)
            if (value := numbers.get(*key)) is not None
        ]

    return check


def positive(measure: str, titles: Sequence[str], sequences: Sequence[str], sign: int = 1) -> Check:
    """The number lies above zero, or with sign -1 below it; for the paper's numbers zero as printed is enough."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for key in ((measure, title, sequence) for sequence in sequences for title in titles):
            if (value := numbers.get(*key)) is not None:
                holds = round(sign * value, 1) >= 0 if numbers.printed else sign * value > 0
                findings.append(Finding(f"{key[1]} {key[2]} {measure} {value:+.2f}", holds, (key,)))
        return findings

    return check


def on_average(
    measure: str, winners: Sequence[str], losers: Sequence[str], sequences: Sequence[str], by: float = 0.0
) -> Check:
    """More on average over the sequences that both have, of which there must be at least two."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for winner in winners:
            for loser in losers:
                shared = [s for s in sequences if all((measure, t, s) in numbers.known for t in (winner, loser))]
                if winner != loser and len(shared) >= 2:
                    keys = [[(measure, title, s) for s in shared] for title in (winner, loser)]
                    first, second = (sum(numbers.known[key] for key in half) / len(shared) for half in keys)
                    text = f"{winner} {first:.1f}, {loser} {second:.1f} on average over {len(shared)}"
                    findings.append(Finding(text, first > second + by, (*keys[0], *keys[1])))
        return findings

    return check


def close(measure: str, pairs: Sequence[tuple[str, str]], sequences: Sequence[str], limit: float) -> Check:
    """Two systems differ by less than the limit."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for one, other in pairs:
            for sequence in sequences:
                keys = (measure, one, sequence), (measure, other, sequence)
                first, second = (numbers.get(*key) for key in keys)
                if first is not None and second is not None:
                    text = f"{one} {sequence} {first:.1f}, {other} {second:.1f}"
                    findings.append(Finding(text, abs(first - second) <= limit, keys))
        return findings

    return check


def both(*checks: Check) -> Check:
    return lambda numbers: [finding for check in checks for finding in check(numbers)]


def best_in_most(numbers: Numbers) -> list[Finding]:
    wins, keys = [], []
    for sequence in DISSIMILAR:
        known = [key for title in CONTINUAL if (key := ("ACC", title, sequence)) in numbers.known]
        spg = ("ACC", "SPG", sequence)
        if spg in known and len(known) > 1:
            wins.append(numbers.known[spg] >= max(numbers.known[key] for key in known))
            keys += known
    text = f"SPG is best on {sum(wins)} of {len(wins)} sequences"
    return [Finding(text, sum(wins) > len(wins) / 2, tuple(keys))] if wins else []


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
        key = ("pruned", "SPG", sequence, "Highest 20%")
        left, chance = numbers.get(*key), 100 / paper_tables()["sequences"][sequence]["classes_per_task"]
        if left is not None:
            findings.append(Finding(f"{sequence} {left:.1f}, chance {chance:.1f}", left <= chance + 10, (key,)))
    return findings


def _learned(numbers: Numbers, title: str, sequence: str) -> list[Key]:
    """Where representation accuracies over 0, 1, 2, ... learned tasks are found."""
    found: list[Key] = []
    while (key := ("representation", title, sequence, str(len(found)))) in numbers.known:
        found.append(key)
    return found


def better_features(numbers: Numbers) -> list[Finding]:
    findings = []
    for sequence in ALL:
        spg = _learned(numbers, "SPG", sequence)
        for other in ("NCL", "HAT", "WSN"):
            theirs = _learned(numbers, other, sequence)
            if spg and theirs:
                keys = spg[-1], theirs[-1]
                ours, others = (numbers.known[key] for key in keys)
                text = f"after {sequence}: SPG {ours:.1f}, {other} {others:.1f}"
                findings.append(Finding(text, ours > others, keys))
    return findings


def hat_features_fall(numbers: Numbers) -> list[Finding]:
    curve = _learned(numbers, "HAT", "C-10")
    if len(curve) <= 2:
        return []
    keys = curve[1], curve[-1]
    one, every = (numbers.known[key] for key in keys)
    return [Finding(f"after C-10: HAT {one:.1f} with one task, {every:.1f} with all", every < one, keys)]


def _gap(sequence: str, at: str, name: str) -> Key:
    return "cross-head", "SPG", sequence, at, name


def cross_head_adds(numbers: Numbers) -> list[Finding]:
    keys = [_gap(sequence, at, "F-total") for sequence in ALL for at in ("2", "T/2", "T")]
    return [
        Finding(f"{key[2]} task {key[3]}: F-total {value:.2f}", value > 0, (key,))
        for key in keys
        if (value := numbers.get(*key)) is not None
    ]


def smaller_gaps(numbers: Numbers) -> list[Finding]:
    findings = []
    for name in ("G-each", "G-total"):
        similar, dissimilar = (
            [key for s in kind for at in ("2", "T/2", "T") if (key := _gap(s, at, name)) in numbers.known]
            for kind in (SIMILAR, DISSIMILAR)
        )
        if similar and dissimilar:
            first, second = (sum(numbers.known[key] for key in keys) / len(keys) for keys in (similar, dissimilar))
            text = f"{name}: similar {first:.2f}, dissimilar {second:.2f}"
            findings.append(Finding(text, first < second, (*similar, *dissimilar)))
    return findings
