"""The paper's own layout: a row for each system, a column for each sequence, averages, best and second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from softmask.experiments.analyses.accuracy import References, measures, over_seeds, references
from softmask.experiments.analyses.grouping import (
    UNRANKED,
    Group,
    Runs,
    finished_groups,
    gathered,
    is_similar,
    is_whole,
    method_order,
    sequence_order,
    without_seeds,
)
from softmask.experiments.analyses.identity import footnotes_of
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.metrics import FORMULAS
from softmask.experiments.paper.published import paper_tables, paper_value
from softmask.experiments.runs.store import StoredRun

AVERAGES = {"dissimilar": False, "similar": True}
Label = tuple[str, str, str]
"""System, training, and what is changed."""
Row = dict[str, Group]
"""The groups of one row, by their sequence."""
Cells = dict[str, Value]
EACH = "by sequence"
"""What a row says where each sequence has something of its own."""


def accuracy_by_sequence(runs: Iterable[StoredRun]) -> Table:
    return _table(runs, "ACC", "Accuracy after the last task, in percent", _is_main, "accuracy")


def forward_transfer(runs: Iterable[StoredRun]) -> Table:
    return _table(runs, "FWT", "Forward transfer, in percentage points", _is_compared, "forward_transfer")


def backward_transfer(runs: Iterable[StoredRun]) -> Table:
    return _table(runs, "BWT", "Backward transfer, in percentage points", _is_compared, "backward_transfer")


def ablation(runs: Iterable[StoredRun]) -> Table:
    """SPG and what is left of it; nothing where only SPG itself was run."""
    table = _table(runs, "ACC", "Accuracy without parts of SPG, in percent", _is_ablation, "ablation_accuracy")
    return table if any(row[0] != "SPG" for row in table.rows) else dataclasses.replace(table, rows=[])


def _is_ablation(title: str) -> bool:
    return title in paper_tables()["ablation_accuracy"]


def _is_main(title: str) -> bool:
    return title == "SPG" or not _is_ablation(title)


def _is_compared(title: str) -> bool:
    return _is_main(title) and title not in UNRANKED


def _table(
    runs: Iterable[StoredRun], measure: str, caption: str, wanted: Callable[[str], bool], paper_table: str
) -> Table:
    runs = gathered(runs)
    alone = references(runs)
    groups = [group for group in finished_groups(runs) if wanted(group.title)]
    sequences = sorted({group.sequence for group in groups}, key=sequence_order)
    trainings = _trainings(runs, wanted)
    labelled = _rows(groups, trainings)
    cells = {label: _cells(row, measure, alone, paper_table, runs) for label, row in labelled.items()}
    shown = _with_averages(sequences, cells, paper_table)
    _rank(cells, shown)
    missing = _missing(runs, labelled, wanted, trainings)
    shown += sorted({sequence for found in missing.values() for sequence in found} - set(shown), key=sequence_order)
    rows: list[tuple[Cell, ...]] = [
        (
            *(_bracketed(label[0]), label[1], label[2] or None),
            *(cells.get(label, {}).get(column) or missing.get(label, {}).get(column) for column in shown),
        )
        for label in sorted({**labelled, **missing}, key=lambda label: (method_order(label[0]), label[1:]))
    ]
    notes = [
        f"{measure} = {FORMULAS[measure]}; mean and standard deviation over seeds, the paper's number beside ours.",
        "Best is bold, second underlined, among runs trained alike that lack no seed. An average is over the "
        "whole sequences of its kind shown here, for systems that have them all; the paper's beside it is over the "
        "same sequences.",
    ]
    return Table(f"{caption}, by sequence", ("method", "training", "changed", *shown), rows, tuple(notes))


def _trainings(runs: Iterable[StoredRun], wanted: Callable[[str], bool]) -> Callable[[Group], str]:
    """The training that a group's row names. Where every sequence has one training, alike for all systems, and they
    differ between sequences (small data are trained longer), a system is still one row."""
    groups = [group for run in runs if wanted((group := Group((run,))).title)]
    pairs = {(group.sequence, group.training) for group in groups}
    one_each = len({sequence for sequence, _ in pairs}) == len(pairs) > 1
    if one_each and len({training for _, training in pairs}) > 1:
        return lambda group: EACH
    return lambda group: group.training


def _rows(groups: Sequence[Group], trainings: Callable[[Group], str]) -> dict[Label, Row]:
    """A system trained in one way is one row, even with settings found for each sequence; of two ways to set it on one
    sequence each has its own."""
    variants: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        variants.setdefault((group.title, trainings(group)), []).append(group)
    rows: dict[Label, Row] = {}
    for (title, training), members in variants.items():
        alone = len({member.sequence for member in members}) == len(members)
        said = {member.changed or "" for member in members}
        for member in members:
            changed = member.changed or ""
            label = changed if not alone or len(said) == 1 else EACH
            rows.setdefault((title, training, label), {})[member.sequence] = member
    return rows


def _missing(
    runs: Sequence[StoredRun],
    labelled: Mapping[Label, Row],
    wanted: Callable[[str], bool],
    trainings: Callable[[Group], str],
) -> dict[Label, dict[str, str]]:
    """Where no seed came to an end: `failed` or `unfinished`, by row and sequence. A way of its own has its own row."""
    there = {without_seeds(group.config) for row in labelled.values() for group in row.values()}
    found: dict[Label, dict[str, str]] = {}
    for run in runs:
        group = Group((run,))
        if run.finished or not wanted(group.title) or without_seeds(run.config) in there:
            continue
        system = (group.title, trainings(group))
        mixed = (*system, EACH)
        label = mixed if mixed in labelled and group.sequence not in labelled[mixed] else (*system, group.changed or "")
        cells = found.setdefault(label, {})
        if cells.get(group.sequence) != "failed":
            cells[group.sequence] = run.status
    return found


def _cells(row: Row, measure: str, alone: References, paper_table: str, runs: Runs) -> Cells:
    found: Cells = {}
    for sequence, group in row.items():
        measured = [measures(run, alone) for run in group.runs]
        value = over_seeds(measured, measure, runs.lost(group), signed=measure != "ACC")
        if value is None:
            continue
        paper = paper_value(paper_table, group.title, group.config.sequence) if group.whole else None
        notes = footnotes_of(group, measured, alone) if measure == "ACC" else ()
        found[sequence] = dataclasses.replace(value, paper=paper, footnotes=(*notes, *value.footnotes))
    return found


def _with_averages(sequences: list[str], cells: Mapping[Label, Cells], paper_table: str) -> list[str]:
    """The columns, with an average after each kind of which there are at least two."""
    columns: list[str] = []
    for kind, similar in AVERAGES.items():
        of_kind = [sequence for sequence in sequences if is_similar(sequence) is similar]
        # Part of a sequence is not another one: it is shown, and counts in no average.
        members = [sequence for sequence in of_kind if is_whole(sequence)]
        columns += of_kind
        if len(members) < 2:
            continue
        columns.append(f"{kind} avg.")
        for row in cells.values():
            if all(member in row for member in members):
                row[columns[-1]] = _average([row[member] for member in members])
    return columns + [sequence for sequence in sequences if is_similar(sequence) is None]


def _average(values: Sequence[Value]) -> Value:
    paper = [value.paper for value in values if value.paper is not None]
    return Value(
        sum(value.mean for value in values) / len(values),
        signed=values[0].signed,
        paper=sum(paper) / len(paper) if len(paper) == len(values) else None,
        footnotes=tuple(dict.fromkeys(note for value in values if value.partial for note in value.footnotes)),
        partial=any(value.partial for value in values),
    )


def _rank(cells: Mapping[Label, Cells], columns: Sequence[str]) -> None:
    """Equal as printed is equal: the paper prints three systems in bold on FE-20."""
    for training in {label[1] for label in cells}:
        rows = [row for label, row in cells.items() if label[1] == training and label[0] not in UNRANKED]
        for column in columns:
            able = [row for row in rows if column in row and not row[column].partial]
            printed = sorted({_as_printed(row[column]) for row in able}, reverse=True)
            for row in able if len(able) > 1 else ():
                if _as_printed(row[column]) in printed[:2]:
                    row[column] = dataclasses.replace(row[column], rank=printed.index(_as_printed(row[column])) + 1)


def _as_printed(value: Value) -> float:
    return float(value.number(value.mean))


def _bracketed(title: str) -> str:
    return f"({title})" if title in UNRANKED else title
