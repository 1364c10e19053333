"""Comparisons of which claims are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from softmask.experiments.analyses.capacity import WHOLE
from softmask.experiments.paper import paper_tables
from softmask.experiments.paper.evidence import Key, Numbers

DISSIMILAR = ("C-10", "C-20", "T-10", "T-20", "I-100")
SIMILAR = ("FC-10", "FC-20", "FE-10", "FE-20")
ALL = DISSIMILAR + SIMILAR
CONTINUAL = tuple(title for title in paper_tables()["accuracy"] if title not in ("MTL", "ONE"))


@dataclass(frozen=True)
class Finding:
    """One comparison with its numbers."""

    text: str
    holds: bool
    keys: tuple[Key, ...]
    """The numbers that were compared."""


Check = Callable[[Numbers], list[Finding]]
"""All comparisons that the numbers allow; none where they are missing."""


def both(*checks: Check) -> Check:
    return lambda numbers: [finding for check in checks for finding in check(numbers)]


def ordered(pairs: Iterable[tuple[Key, Key]], by: float = 0.0) -> Check:
    """The first number of each pair is larger; for the paper's numbers equal as printed is enough."""
    pairs = list(pairs)

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for larger, smaller in pairs:
            first, second = numbers.get(*larger), numbers.get(*smaller)
            if first is None or second is None:
                continue
            if by:
                holds = round(first, 2) > round(second + by, 2)
            else:
                holds = round(first, 1) >= round(second, 1) if numbers.printed else first > second
            text = f"{' '.join(larger[1:])} {first:.1f}, {' '.join(smaller[1:2] + smaller[3:])} {second:.1f}"
            findings.append(Finding(text, holds, (larger, smaller)))
        return findings

    return check


def above(
    measure: str, winners: Sequence[str], losers: Sequence[str], sequences: Sequence[str], by: float = 0.0
) -> Check:
    """Every winner has more than every loser, on every sequence."""
    return ordered(
        (
            ((measure, winner, sequence), (measure, loser, sequence))
            for sequence in sequences
            for winner in winners
            for loser in losers
            if winner != loser
        ),
        by,
    )


def each(keys: Iterable[Key], holds: Callable[[float, bool], bool], digits: int = 1) -> Check:
    """A condition on every number, given whether it is a printed one."""
    keys = list(keys)

    def check(numbers: Numbers) -> list[Finding]:
        found = ((key, numbers.get(*key)) for key in keys)
        return [
            Finding(f"{' '.join(key[1:])} {key[0]} {value:+.{digits}f}", holds(value, numbers.printed), (key,))
            for key, value in found
            if value is not None
        ]

    return check


def within(measure: str, titles: Sequence[str], sequences: Sequence[str], low: float, high: float) -> Check:
    """The number is between two bounds."""
    keys = ((measure, title, sequence) for sequence in sequences for title in titles)
    return each(keys, lambda value, _: low <= round(value, 2) <= high)


def positive(measure: str, titles: Sequence[str], sequences: Sequence[str], sign: int = 1) -> Check:
    """The number is above zero, or with sign -1 below it; for the paper's numbers zero as printed is enough."""
    keys = ((measure, title, sequence) for sequence in sequences for title in titles)
    return each(keys, lambda value, printed: round(sign * value, 1) >= 0 if printed else sign * value > 0, 2)


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


def mean_of(numbers: Numbers, keys: Sequence[Key]) -> float:
    return sum(numbers.known[key] for key in keys) / len(keys)


def on_average(measure: str, winners: Sequence[str], losers: Sequence[str], sequences: Sequence[str]) -> Check:
    """More on average over the sequences that both have, of which there must be at least two."""

    def check(numbers: Numbers) -> list[Finding]:
        findings = []
        for winner in winners:
            for loser in losers:
                keys = {t: {s: (measure, t, s) for s in sequences} for t in (winner, loser)}
                known = {t: {s for s, key in of.items() if numbers.get(*key) is not None} for t, of in keys.items()}
                shared = [s for s in sequences if s in known[winner] & known[loser]]
                if winner != loser and len(shared) >= 2:
                    ours, theirs = ([keys[title][s] for s in shared] for title in (winner, loser))
                    first, second = mean_of(numbers, ours), mean_of(numbers, theirs)
                    text = f"{winner} {first:.1f}, {loser} {second:.1f} on average over {len(shared)}"
                    findings.append(Finding(text, first > second, (*ours, *theirs)))
        return findings

    return check


def learned_curve(numbers: Numbers, title: str, sequence: str) -> list[Key]:
    """Keys of the representation accuracies after 0, 1, 2, ... tasks."""
    keys = (("representation", title, sequence, str(learned)) for learned in count())
    return list(takewhile(lambda key: numbers.get(*key) is not None, keys))


def best_in_most(numbers: Numbers) -> list[Finding]:
    wins: list[bool] = []
    keys: list[Key] = []
    for sequence in DISSIMILAR:
        known = [key for title in CONTINUAL if numbers.get(*(key := ("ACC", title, sequence))) is not None]
        spg = ("ACC", "SPG", sequence)
        if spg in known and len(known) > 1:
            wins.append(numbers.known[spg] >= max(numbers.known[key] for key in known))
            keys += known
    text = f"SPG is best on {sum(wins)} of {len(wins)} sequences"
    return [Finding(text, sum(wins) > len(wins) / 2, tuple(keys))] if wins else []


def blocked(larger: tuple[str, str], smaller: tuple[str, str]) -> Check:
    """(system, part) against (system, part), on all sequences."""
    keys = lambda of, s, at: ("blocked", of[0], s, of[1], at)  # noqa: E731
    return ordered((keys(larger, s, at), keys(smaller, s, at)) for s in ALL for at in ("1", "T/2", "T"))


GROWS = ordered(
    (("blocked", title, s, WHOLE, later), ("blocked", title, s, WHOLE, earlier))
    for title in ("SPG", "HAT")
    for s in ALL
    for earlier, later in (("1", "T/2"), ("T/2", "T"))
)
PRUNING = ordered(
    (("pruned", "SPG", s, f"{more} {share}%"), ("pruned", "SPG", s, f"{less} {share}%"))
    for s in ALL
    for share in (10, 20)
    for more, less in (("Lowest", "Random"), ("Random", "Highest"))
)
CHI_ADDS = each(
    (("cross-head", "SPG", s, at, "F-total") for s in ALL for at in ("2", "T/2", "T")), lambda value, _: value > 0, 2
)


def near_chance(numbers: Numbers) -> list[Finding]:
    """Within ten points of chance without the highest 20 %."""
    findings = []
    for sequence in ALL:
        key = ("pruned", "SPG", sequence, "Highest 20%")
        left, chance = numbers.get(*key), 100 / paper_tables()["sequences"][sequence]["classes_per_task"]
        if left is not None:
            findings.append(Finding(f"{sequence} {left:.1f}, chance {chance:.1f}", left <= chance + 10, (key,)))
    return findings


def better_features(numbers: Numbers) -> list[Finding]:
    findings = []
    for sequence in ALL:
        spg = learned_curve(numbers, "SPG", sequence)
        for other in ("NCL", "HAT", "WSN"):
            theirs = learned_curve(numbers, other, sequence)
            if spg and theirs:
                keys = spg[-1], theirs[-1]
                ours, others = (numbers.known[key] for key in keys)
                text = f"after {sequence}: SPG {ours:.1f}, {other} {others:.1f}"
                findings.append(Finding(text, ours > others, keys))
    return findings


def hat_features_fall(numbers: Numbers) -> list[Finding]:
    curve = learned_curve(numbers, "HAT", "C-10")
    if len(curve) <= 2:
        return []
    first, last = (numbers.known[key] for key in (curve[1], curve[-1]))
    text = f"after C-10: HAT {first:.1f} with one task, {last:.1f} with all"
    return [Finding(text, last < first, (curve[1], curve[-1]))]


def smaller_gaps(numbers: Numbers) -> list[Finding]:
    findings = []
    for name in ("G-each", "G-total"):
        every = {s: [("cross-head", "SPG", s, at, name) for at in ("2", "T/2", "T")] for s in ALL}
        similar, dissimilar = (
            [key for s in kind for key in every[s] if numbers.get(*key) is not None] for kind in (SIMILAR, DISSIMILAR)
        )
        if similar and dissimilar:
            first, second = mean_of(numbers, similar), mean_of(numbers, dissimilar)
            text = f"{name}: similar {first:.2f}, dissimilar {second:.2f}"
            findings.append(Finding(text, first < second, (*similar, *dissimilar)))
    return findings
