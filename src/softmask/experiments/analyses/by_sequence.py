"""The paper's layout: a row for each system, a column for each sequence, averages, best and second best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from softmask.experiments.analyses.accuracy import References, measures, over_seeds, references, with_chance_note
from softmask.experiments.analyses.comparisons import identity_notes
from softmask.experiments.analyses.grouping import (
    RANKED_APART,
    UNRANKED,
    Group,
    Runs,
    gathered,
    is_similar,
    is_whole,
    method_order,
    sequence_order,
    without_seeds,
)
from softmask.experiments.analyses.table import Row, Table, Value, with_ranks
from softmask.experiments.metrics import FORMULAS
from softmask.experiments.paper import PAPER, Published, paper_tables
from softmask.experiments.runs.store import StoredRun

Label = tuple[str, str, str]
"""System, training and changed settings."""
Cells = dict[str, Value]
Wanted = Callable[[str], bool]
"""Whether a system, by its title, belongs to a table."""
EACH = "by sequence"
"""The label of a row in which every sequence has its own settings."""


def accuracy_by_sequence(runs: Iterable[StoredRun], published: Published = PAPER) -> Table:
    return _table(runs, "ACC", "Accuracy after the last task, in percent", _is_main, published)


def forward_transfer(runs: Iterable[StoredRun], published: Published = PAPER) -> Table:
    return _table(runs, "FWT", "Forward transfer, in percentage points", _is_compared, published)


def backward_transfer(runs: Iterable[StoredRun], published: Published = PAPER) -> Table:
    return _table(runs, "BWT", "Backward transfer, in percentage points", _is_compared, published)


def ablation(runs: Iterable[StoredRun], published: Published = PAPER) -> Table:
    """SPG and its ablations; no row where only SPG itself was run."""
    table = _table(runs, "ACC", "Accuracy without parts of SPG, in percent", _is_ablation, published)
    return table if any(row[0] != "SPG" for row in table.rows) else table.where(lambda row: False)


def _is_ablation(title: str) -> bool:
    return title in paper_tables()["ablation_accuracy"]


def _is_main(title: str) -> bool:
    return title == "SPG" or not _is_ablation(title)


def _is_compared(title: str) -> bool:
    return _is_main(title) and title not in UNRANKED


def _table(runs: Iterable[StoredRun], measure: str, caption: str, wanted: Wanted, published: Published) -> Table:
    runs = gathered(runs)
    alone = references(runs)
    groups = [group for group in runs.groups if wanted(group.title)]
    begun = [group for run in runs if wanted((group := Group((run,))).title)]
    training_of = _training_labels(begun)
    labelled = _rows(groups, training_of)
    cells = {label: _cells(row, measure, alone, runs, published) for label, row in labelled.items()}
    shown = _with_averages(sorted({group.sequence for group in groups}, key=sequence_order), cells)
    extra = {label: next(iter(row.values())).extra_data for label, row in labelled.items()}
    _rank(cells, shown, extra)
    missing = _missing(begun, labelled, training_of)
    shown += sorted({sequence for found in missing.values() for sequence in found} - set(shown), key=sequence_order)
    rows: list[Row] = [
        (
            *(f"({label[0]})" if label[0] in UNRANKED else label[0], label[1] or None, label[2] or None),
            *(cells.get(label, {}).get(column) or missing.get(label, {}).get(column) for column in shown),
        )
        for label in sorted({**labelled, **missing}, key=lambda label: (method_order(label[0]), label[1:]))
    ]
    apart = [RANKED_APART] if any(any(extra[label]) for label in extra if label[0] not in UNRANKED) else []
    notes = [*_notes(measure, cells, shown), *apart, *_settings_notes(labelled, begun, training_of)]
    return Table(f"{caption}, by sequence", ("method", "training", "changed", *shown), rows, notes)


def _notes(measure: str, cells: Mapping[Label, Cells], shown: Sequence[str]) -> list[str]:
    """Only about what the table has."""
    values = [value for row in cells.values() for value in row.values()]
    beside = next((value.source for value in values if value.paper is not None), None)
    owner = "the paper's number" if beside == "paper" else f"the number of {beside}"
    notes = [f"{measure} = {FORMULAS[measure]}; mean and standard deviation over seeds"]
    notes[0] += f", {owner} beside ours." if beside else "."
    if any(value.rank for value in values):
        notes.append("Best is bold, second underlined, among runs trained alike that lack no seed.")
    if any(name.endswith(" avg.") for name in shown):
        notes.append(
            "An average is over the whole sequences of its kind shown here, for systems that have them all"
            + ("; the published one is over the same sequences." if beside else ".")
        )
    return notes


def _settings_notes(
    labelled: Mapping[Label, Mapping[str, Group]], begun: Sequence[Group], training_of: Callable[[Group], str]
) -> list[str]:
    """Trainings and settings that differ between the sequences of one row."""
    notes = []
    if training_of is _same_for_all:
        notes.append("Training: " + "; ".join(sorted({f"{group.sequence} {group.training}" for group in begun})) + ".")
    for (title, _, changed), row in labelled.items():
        if changed == EACH:
            settings = "; ".join(f"{sequence} {group.changed or 'defaults'}" for sequence, group in row.items())
            notes.append(f"Settings of {title}: {settings}.")
    return notes


def _same_for_all(group: Group) -> str:
    return ""


def _training_labels(begun: Iterable[Group]) -> Callable[[Group], str]:
    """The training that a row names. Where every sequence has one training, the same for all systems, and they differ
    between sequences (small datasets are trained longer), a system is still one row and a note names the trainings."""
    pairs = {(group.sequence, group.training) for group in begun}
    one_each = len({sequence for sequence, _ in pairs}) == len(pairs) > 1
    if one_each and len({training for _, training in pairs}) > 1:
        return _same_for_all
    return lambda group: group.training


def _rows(groups: Sequence[Group], training_of: Callable[[Group], str]) -> dict[Label, dict[str, Group]]:
    """A system trained in one way is one row, even with settings found for each sequence; two settings of it on one
    sequence are two rows."""
    variants: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        variants.setdefault((group.title, training_of(group)), []).append(group)
    rows: dict[Label, dict[str, Group]] = {}
    for (title, training), members in variants.items():
        alone = len({member.sequence for member in members}) == len(members)
        mixed = alone and len({member.changed for member in members}) > 1
        for member in members:
            label = EACH if mixed else member.changed or ""
            rows.setdefault((title, training, label), {})[member.sequence] = member
    return rows


def _missing(
    begun: Sequence[Group], labelled: Mapping[Label, Mapping[str, Group]], training_of: Callable[[Group], str]
) -> dict[Label, dict[str, str]]:
    """`failed` or `unfinished`, by row and sequence, where no seed finished. Other settings have a row of their own."""
    there = {without_seeds(group.config) for row in labelled.values() for group in row.values()}
    found: dict[Label, dict[str, str]] = {}
    for group in begun:
        run = group.runs[0]
        if run.finished or without_seeds(run.config) in there:
            continue
        system = (group.title, training_of(group))
        mixed = (*system, EACH)
        label = mixed if mixed in labelled and group.sequence not in labelled[mixed] else (*system, group.changed or "")
        cells = found.setdefault(label, {})
        if cells.get(group.sequence) != "failed":
            cells[group.sequence] = run.status
    return found


def _cells(
    row: Mapping[str, Group], measure: str, alone: References, runs: Runs, published: Published
) -> dict[str, Value]:
    found: Cells = {}
    for sequence, group in row.items():
        measured = [measures(run, alone) for run in group.runs]
        value = over_seeds(measured, measure, runs.lost(group), signed=measure != "ACC")
        if value is None:
            continue
        if measure == "ACC":
            value = with_chance_note(group, value) or value
            value = replace(value, footnotes=(*identity_notes(group, measured, alone), *value.footnotes))
        which = (group.title, group.config.sequence, group.training)
        paper = published.get(measure, *which) if group.as_published else None
        found[sequence] = replace(value, paper=paper, source=published.name)
    return found


def _with_averages(sequences: list[str], cells: Mapping[Label, Cells]) -> list[str]:
    """The columns, with an average after each kind of sequence of which there are at least two."""
    columns: list[str] = []
    for kind, similar in {"dissimilar": False, "similar": True}.items():
        of_kind = [sequence for sequence in sequences if is_similar(sequence) is similar]
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
        source=values[0].source,
        footnotes=tuple(dict.fromkeys(note for value in values if value.partial for note in value.footnotes)),
        partial=any(value.partial for value in values),
    )


def _rank(cells: Mapping[Label, Cells], columns: Sequence[str], extra: Mapping[Label, tuple[bool, bool]]) -> None:
    """Among runs trained alike, of methods that may use the same."""
    alike: dict[tuple[object, ...], list[Cells]] = {}
    for label, row in cells.items():
        if label[0] not in UNRANKED:
            alike.setdefault((label[1], extra[label]), []).append(row)
    for rows in alike.values():
        for column in columns:
            members = [row for row in rows if column in row]
            for row, cell in zip(members, with_ranks([row[column] for row in members]), strict=True):
                assert isinstance(cell, Value)
                row[column] = cell
