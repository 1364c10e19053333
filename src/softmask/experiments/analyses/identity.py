"""ACC = mean(ONE) + FWT + BWT (T - 1) / T, by the definitions alone: where numbers break it, they are told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from softmask.experiments.analyses.accuracy import Measures, References, measures, reached_alone, references
from softmask.experiments.analyses.grouping import UNRANKED, Group, finished_groups, gathered
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.paper.published import paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun

TOLERANCE = 0.5
"""Of rounded numbers, three may be off by 0.05 each; more than ten times that is no rounding."""


def gap(accuracy: float, alone: float, forward: float, backward: float, tasks: int) -> float:
    """How far the accuracy lies above what the others say it must be."""
    return accuracy - (alone + forward + backward * (tasks - 1) / tasks)


def paper_gap(title: str, sequence: str) -> float | None:
    """The same of the paper's numbers; None where it lacks one of them."""
    facts = paper_tables()["sequences"].get(sequence)
    found = [
        paper_value("accuracy", title, sequence),
        paper_value("accuracy", "ONE", sequence),
        paper_value("forward_transfer", title, sequence),
        paper_value("backward_transfer", title, sequence),
    ]
    numbers = [number for number in found if number is not None]
    if facts is None or len(numbers) < len(found):
        return None
    accuracy, alone, forward, backward = numbers
    return gap(accuracy, alone, forward, backward, facts["tasks"])


def our_gap(group: Group, measured: Sequence[Measures], alone: References) -> float | None:
    """Of means over seeds, as printed in three tables. Not zero where a seed lacks its reference."""
    means = [Value.of([v for each in measured if (v := each[name]) is not None]) for name in ("ACC", "FWT", "BWT")]
    reached = [found for run in group.runs if (found := reached_alone(run, alone))]
    own = [sum(by_place.values()) / len(by_place) for by_place in reached]
    if not own or any(mean is None for mean in means):
        return None
    accuracy, forward, backward = (mean.mean for mean in means if mean is not None)
    return gap(accuracy, sum(own) / len(own), forward, backward, group.tasks)


def footnotes_of(group: Group, measured: Sequence[Measures], alone: References) -> tuple[str, ...]:
    notes = []
    found = {"our": our_gap(group, measured, alone)}
    if group.whole:
        found["the paper's"] = paper_gap(group.title, group.config.sequence)
    for whose, size in found.items():
        if size is not None and abs(size) > TOLERANCE:
            notes.append(f"{group.title} on {group.sequence}: {whose} ACC is {size:+.1f} from ONE + FWT + BWT (T-1)/T")
    return tuple(notes)


def identity(runs: Iterable[StoredRun]) -> Table:
    """All cells, the paper's and ours, that break the identity by more than the tolerance."""
    runs = gathered(runs)
    alone = references(runs)
    rows: list[tuple[Cell, ...]] = []
    for sequence in paper_tables()["sequences"]:
        for title in paper_tables()["accuracy"]:
            size = None if title in UNRANKED else paper_gap(title, sequence)
            if size is not None and abs(size) > TOLERANCE:
                rows.append(("paper", sequence, title, None, Value(size, signed=True)))
    for group in finished_groups(runs):
        size = our_gap(group, [measures(run, alone) for run in group.runs], alone)
        if size is not None and abs(size) > TOLERANCE:
            rows.append(("ours", group.sequence, group.title, group.training, Value(size, signed=True)))
    return Table(
        "Accuracies that differ by more than 0.5 from mean(ONE) + FWT + BWT (T-1)/T",
        ("whose", "sequence", "method", "training", "difference"),
        rows,
        ("The identity follows from the definitions: means over the same seeds cannot break it.",),
        labels=3,
    )
