"""Accuracy, forward and backward transfer of stored runs, beside published numbers; as tables, curves and matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from softmask.experiments.analyses.grouping import (
    LABELS,
    RANKED_APART,
    REFERENCE,
    UNRANKED,
    Group,
    gathered,
    reference_settings,
    sequence_order,
    setting,
)
from softmask.experiments.analyses.table import INTERVALS, Cell, Row, Table, Value, slope, with_ranks
from softmask.experiments.metrics import (
    FORMULAS,
    NO_ID,
    NO_ID_FORMULA,
    accuracy_without_id,
    average_accuracy,
    backward_transfer,
    forward_transfer,
)
from softmask.experiments.paper import PAPER, Published, paper_tables, protocol_sources
from softmask.experiments.runs.store import StoredRun

Measures = dict[str, float | None]
References = Mapping[str, Mapping[str, float]]
"""Accuracy of ONE by the name of the task, for each setting."""
TEST_IMAGES = 100
"""Assumed size of a task's test set where the paper does not give it."""
ALLOWED = ("old data kept", "grows with tasks", "other data")
"""Columns with the data and memory that a method uses."""


def accuracy(runs: Iterable[StoredRun], published: Published = PAPER) -> Table:
    """One row for each method, sequence, training and setting, averaged over seeds.

    In each sequence, methods that keep old data or use other data follow those that do not.
    """
    runs = gathered(runs)
    alone = references(runs)
    groups = sorted(runs.groups, key=lambda group: (sequence_order(group.sequence), _standing(group)))
    rows = [_row(group, alone, runs.lost(group), published) for group in groups]
    _rank(groups, rows)
    shown: list[Row] = [*map(tuple, rows), *_not_run_here(groups, published)]
    beside = [f"{published.name} {name}" for name in FORMULAS]
    columns = (*LABELS, "seeds", *FORMULAS, NO_ID, *beside, *ALLOWED)
    filled = Table("", columns, shown).without_empty_columns().columns
    caption = "Accuracy and transfer on the test sets, in percent"
    if set(beside) & set(filled):
        caption += ", beside the paper's" if published is PAPER else f", beside those of {published.name}"
    notes = [f"{name} = {formula}" for name, formula in FORMULAS.items()]
    if NO_ID in filled:
        notes.append(f"{NO_ID} = {NO_ID_FORMULA}.")
    if "FWT" in filled:
        notes.append(
            "FWT compares with ONE, matched by task, from runs with the same seeds, network and training; learning "
            "and dropout rates that are a method's own may differ."
        )
    if any(isinstance(row[5], Value) and row[5].rank for row in shown):
        notes.append("The best ACC of each sequence and training is bold, the second underlined.")
        if any(any(_standing(group)) for group in groups):
            notes.append(RANKED_APART)
    if published is PAPER:
        notes += protocol_sources({(group.config.sequence, group.training) for group in groups if group.whole})
    table = Table(caption, columns, shown, notes, labels=2)
    return table.select([name for name in columns if name in filled or name not in (NO_ID, *beside, *ALLOWED)])


def _standing(group: Group) -> tuple[bool, bool]:
    """References are listed with methods that use no additional data."""
    return (False, False) if group.title in UNRANKED else group.extra_data


def _row(group: Group, alone: References, lost: int, published: Published) -> list[Cell]:
    measured = [measures(run, alone) for run in group.runs]
    ours = {name: over_seeds(measured, name, lost) for name in FORMULAS}
    ours["ACC"] = with_chance_note(group, ours["ACC"])
    which = (group.title, group.config.sequence, group.training)
    theirs = [published.get(name, *which) if group.as_published else None for name in FORMULAS]
    allowed = [text or None for text in (group.uses.old_data, group.uses.growth, group.uses.other_data)]
    without_id = group.over_seeds(run_without_id)
    return [*group.label, len(group.runs), *ours.values(), without_id, *theirs, *allowed]


def run_without_id(run: StoredRun) -> float | None:
    return accuracy_without_id(run.without_id())


def _rank(groups: Sequence[Group], rows: Sequence[list[Cell]]) -> None:
    """Best and second best ACC among comparable continual learners."""
    kinds: dict[object, list[list[Cell]]] = {}
    for group, row in zip(groups, rows, strict=True):
        if group.title not in UNRANKED:
            kinds.setdefault((group.kind, group.extra_data), []).append(row)
    for members in kinds.values():
        cells = with_ranks([row[5] for row in members])
        for row, cell in zip(members, cells, strict=True):
            row[5] = cell


def _not_run_here(groups: Sequence[Group], published: Published) -> list[Row]:
    """Systems of a file of published numbers that the store lacks."""
    here = {(group.sequence, group.title) for group in groups}
    nothing = [None] * len(ALLOWED)
    return [
        (
            sequence,
            title,
            "published",
            *[None] * 6,
            *(published.get(name, title, sequence, "published") for name in FORMULAS),
            *nothing,
        )
        for sequence, title in published.systems()
        if (sequence, title) not in here
    ]


def transfer(run: StoredRun, runs: Iterable[StoredRun]) -> Measures:
    """ACC, FWT and BWT of one run; FWT where the store has the matching run of ONE."""
    return measures(run, references(other for other in runs if other.config.sequence == run.config.sequence))


def references(runs: Iterable[StoredRun]) -> dict[str, dict[str, float]]:
    """The finished runs of ONE by their setting."""
    return {setting(run.config): own_accuracies(run) for run in runs if run.config.method == REFERENCE and run.finished}


def own_accuracies(run: StoredRun) -> dict[str, float]:
    """Accuracy of each task just after it was learned, by its name."""
    matrix = run.accuracies()
    return {name: matrix[task][task] for task, name in run.task_names().items() if task in matrix.get(task, {})}


def accuracy_alone(run: StoredRun, alone: References) -> dict[int, float] | None:
    """Accuracy of ONE on the run's tasks, by their position. None where the store has no such run."""
    by_name = next((alone[each] for each in reference_settings(run.config) if each in alone), None)
    if by_name is None:
        return None
    return {task: by_name[name] for task, name in run.task_names().items() if name in by_name}


def measures(run: StoredRun, alone: References) -> Measures:
    matrix = run.accuracies()
    found: Measures = {"ACC": average_accuracy(matrix), "FWT": None, "BWT": None}
    if run.config.method == REFERENCE:
        return found
    found["BWT"] = backward_transfer(matrix)
    by_position = accuracy_alone(run, alone)
    if by_position is not None:
        found["FWT"] = forward_transfer(matrix, by_position)
    return found


def over_seeds(measured: Sequence[Measures], name: str, lost: int, *, signed: bool = False) -> Value | None:
    """The mean over the seeds that have the number; a footnote says which do not."""
    value = Value.of((each[name] for each in measured), signed=signed)
    if value is None:
        return None
    notes = [f"{len(measured)} of {len(measured) + lost} seeds: the others failed."] if lost else []
    if value.count < len(measured):
        notes.append(f"{value.count} of {len(measured)} seeds: the others have no run of ONE to compare with.")
    return replace(value, footnotes=tuple(notes), partial=bool(notes))


def chance(group: Group) -> float | None:
    """Accuracy of guessing, in percent, averaged over tasks."""
    events = [event for event in group.runs[0].events("task") if event.get("classes")]
    tasks = sum(len(event["ids"]) for event in events)
    return sum(100 * len(event["ids"]) ** 2 / event["classes"] for event in events) / tasks if tasks else None


def is_at_chance(group: Group, value: Value) -> bool:
    """Whether an accuracy is within two standard errors of chance, of the seeds or of the test images."""
    guess = chance(group)
    if guess is None:
        return False
    known = paper_tables()["sequences"].get(group.sequence, {})
    images = known.get("test", TEST_IMAGES * group.tasks)
    sampling = (guess * (100 - guess) / images) ** 0.5
    return value.mean <= guess + 2 * max(sampling, (value.std or 0.0) / value.count**0.5)


def with_chance_note(group: Group, value: Value | None) -> Value | None:
    """Marks an accuracy that is not above chance."""
    if value is None or not is_at_chance(group, value):
        return value
    note = f"Not above chance ({chance(group):.1f} %) by more than noise."
    return replace(value, footnotes=(note, *value.footnotes), at_chance=True)


def transfer_of(run: StoredRun, alone: References) -> list[float] | None:
    """Forward transfer of every task, in order. None without the reference, or where tasks were learned jointly."""
    matrix, by_position = run.accuracies(), accuracy_alone(run, alone)
    tasks = sorted(matrix[max(matrix)])
    if run.config.method == REFERENCE or by_position is None:
        return None
    if any(task not in matrix or task not in by_position for task in tasks):
        return None
    return [matrix[task][task] - by_position[task] for task in tasks]


def group_curves(group: Group, alone: References) -> list[list[float]]:
    """One curve for each seed that has its reference."""
    return [curve for run in group.runs if (curve := transfer_of(run, alone)) is not None]


def transfer_curve(runs: Iterable[StoredRun]) -> Table:
    """Forward transfer of each task, and how it changes from one task to the next."""
    runs = gathered(runs)
    alone = references(runs)
    found = [(group, curves) for group in runs.groups if (curves := group_curves(group, alone))]
    longest = max((len(curves[0]) for _, curves in found), default=0)
    rows: list[Row] = []
    for group, curves in found:
        cells = [Value.of(values, signed=True) for values in zip(*curves, strict=True)]
        padding = [None] * (longest - len(cells))
        slopes = Value.with_interval(map(slope, curves), digits=2)
        rows.append((*group.label, len(curves), slopes, *cells, *padding))
    note = (
        "a[j][j] - one[j]; slope: percentage points from one task to the next, by least squares, averaged over seeds, "
        f"with {INTERVALS}."
    )
    columns = (*LABELS, "seeds", "slope", *map(str, range(1, longest + 1)))
    return Table("Forward transfer by task, in percentage points", columns, rows, [note], labels=2)


def accuracy_matrix(runs: Iterable[StoredRun]) -> Table:
    """Accuracy on every task after every task, averaged over seeds."""
    groups = gathered(runs).groups
    longest = max((group.tasks for group in groups), default=0)
    rows = [
        (*group.label, after + 1, *map(row.get, range(longest)))
        for group in groups
        for after, row in mean_matrix(group).items()
    ]
    return Table(
        "Accuracy on each task after each task, in percent",
        (*LABELS, "after", *(f"task {i}" for i in range(1, longest + 1))),
        rows,
        ["a[i][j]: accuracy on task j after task i; seeds are averaged by position."],
        labels=2,
    )


RULES = {
    "logit": "largest logit",
    "confidence": "largest calibrated confidence",
    "means": "nearest class mean",
    "heads": "mean of the heads",
}


def without_id(runs: Iterable[StoredRun]) -> Table:
    """Accuracy without a task id, by each rule, after the last task."""
    groups = [group for group in gathered(runs).groups if any(run.without_id() for run in group.runs)]
    rows: list[Row] = []
    for group in groups:
        found = [run.without_id() for run in group.runs]
        by_rule = [Value.of(average_accuracy(each[rule]) for each in found if rule in each) for rule in RULES]
        with_id = group.over_seeds(lambda run: average_accuracy(run.accuracies()))
        rows.append((*group.label, len(group.runs), with_id, *by_rule))
    notes = [
        "The task id is not given; a prediction is correct if both head and class are. Confidence: softmax of the "
        "logits divided by a temperature for each head, fitted on its task's validation images. Nearest class mean: "
        "means of the classes and one covariance, measured on training images when each task was learned.",
        "Mean of the heads: where all tasks have the same classes, the mean of the heads' probabilities.",
    ]
    columns = (*LABELS, "seeds", "ACC", *RULES.values())
    caption = "Accuracy without a task id, after the last task, in percent"
    return Table(caption, columns, rows, notes, labels=2)


def mean_matrix(group: Group) -> dict[int, dict[int, float]]:
    """By position: other seeds have other tasks there."""
    matrices = [run.accuracies() for run in group.runs]
    return {
        after: {task: sum(m[after][task] for m in matrices) / len(matrices) for task in row}
        for after, row in matrices[0].items()
        if all(row.keys() <= m.get(after, {}).keys() for m in matrices)
    }
