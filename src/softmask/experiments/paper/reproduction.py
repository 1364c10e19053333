"""Each table and figure of the paper: its runs, the analysis that shows them, the comparison with the paper."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softmask.errors import UnknownName
from softmask.experiments.analyses import ANALYSES
from softmask.experiments.analyses.capacity import WHOLE
from softmask.experiments.analyses.cost import agrees
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.analyses.pruning import measure_pruning
from softmask.experiments.analyses.representation import METHODS as REPRESENTATION_METHODS
from softmask.experiments.analyses.representation import measure_representation
from softmask.experiments.analyses.table import Cell, Row, Table, Value, slope
from softmask.experiments.paper import paper_tables, paper_value
from softmask.experiments.paper.verdicts import Layout, Place, compare, orders, verdicts
from softmask.experiments.runs.grid import PAPER_SEEDS, Changes, Grid
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import sequence_facts
from softmask.experiments.sequences.checking import Sizes, check_one, sizes_in_paper
from softmask.learning.registry import METHODS

NAMES = (
    *("statistics", "accuracy", "forward-transfer", "backward-transfer", "blocked", "forward-transfer-curves"),
    *("pruning", "representation", "ablation", "blocked-by-layer", "cross-head", "network-size"),
)
Measure = Callable[[StoredRun, Store, Path | None], object]


@dataclass(frozen=True)
class PaperTable:
    """One table or figure of the paper."""

    name: str
    place: str
    """Where the paper has it."""
    analysis: str | None = None
    """Shows our runs; None where no run is needed."""
    methods: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    with_reference: bool = False
    """Whether every run needs a run of ONE with the same network."""
    measure: Measure | None = None
    """Measured on the checkpoints of a run, which are all kept then."""
    layout: Layout | None = None
    """Where the paper has the cells; None for figures, which have no published numbers."""
    unit: float = 1.0
    wanted: Callable[[Row], bool] | None = None
    """The rows of the analysis that belong to it."""

    @property
    def needs_runs(self) -> bool:
        return self.analysis is not None

    @property
    def keep(self) -> str:
        return "last" if self.measure is None else "all"

    def grid(
        self,
        *,
        sequences: Sequence[str] | None = None,
        methods: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        preset: str = "paper",
        tasks: int | None = None,
        changes: Changes | Mapping[str, Any] | None = None,
    ) -> Grid:
        """The runs: five seeds with the paper's training, else one."""
        plain = Grid.of(
            list(methods or self.methods),
            list(sequences or self.sequences),
            list(seeds or (PAPER_SEEDS if preset == "paper" else PAPER_SEEDS[:1])),
            preset=preset,
            tasks=tasks,
            changes=changes,
            named=bool(methods and sequences),
        )
        if not self.with_reference:
            return plain
        references = [config.of_method(REFERENCE) for config in plain.configs]
        every = {config.id(): config for config in (*references, *plain.configs)}
        return Grid(tuple(every.values()), plain.left_out)

    def tables(self, runs: Sequence[StoredRun]) -> list[Table]:
        """Our table, the comparison with the paper, and for figures the trends."""
        assert self.analysis is not None
        shown = ANALYSES[self.analysis](runs)
        if self.wanted is not None:
            shown = shown.where(self.wanted)
        if self.layout is None:
            return [shown, trends(shown)]
        comparisons = list(compare(shown, self.layout, [run.config for run in runs], self.unit))
        if not comparisons:
            return [shown.noting("No verdict: the paper has no numbers for these runs.")]
        found = [shown, verdicts(comparisons)]
        return found if any(each.judged for each in comparisons) else [*found, orders(comparisons)]


def paper_table(name: str) -> PaperTable:
    if name not in NAMES:
        raise UnknownName("table", name, NAMES)
    return paper_table_list()[name]


@functools.cache
def paper_table_list() -> dict[str, PaperTable]:
    """All of them, in the paper's order."""
    tables = paper_tables()
    by_title = {METHODS.load(name).title: name for name in METHODS.names()}
    every = tuple(tables["sequences"])

    def by_sequence(name: str, place: str, table: str, analysis: str, with_reference: bool = False) -> PaperTable:
        methods = tuple(by_title[title] for title in tables[table])
        layout = functools.partial(_of_system, table) if name != "forward-transfer-curves" else None
        return PaperTable(name, place, analysis, methods, every, with_reference, layout=layout)

    curves = "figures 3 and 5, nine panels"
    blocked = PaperTable("blocked", "table 5", "capacity", ("hat", "spg"), every, layout=_of_capacity)
    found = [
        PaperTable("statistics", "table 1"),
        by_sequence("accuracy", "table 2", "accuracy", "accuracy-by-sequence"),
        by_sequence("forward-transfer", "table 3", "forward_transfer", "forward-transfer", with_reference=True),
        by_sequence("backward-transfer", "table 4", "backward_transfer", "backward-transfer"),
        dataclasses.replace(blocked, wanted=lambda row: row[0] == WHOLE),
        by_sequence("forward-transfer-curves", curves, "forward_transfer", "transfer-curve", with_reference=True),
        PaperTable("pruning", "table 6", "pruning", ("spg",), every, measure=measure_pruning, layout=_of_pruning),
        PaperTable(
            "representation",
            "figures 4 and 6, three pairs",
            "representation",
            REPRESENTATION_METHODS,
            ("C-10", "I-100", "T-10"),
            measure=measure_representation,
        ),
        by_sequence("ablation", "table 7", "ablation_accuracy", "ablation"),
        dataclasses.replace(blocked, name="blocked-by-layer", place="table 8", wanted=lambda row: row[0] != WHOLE),
        PaperTable("cross-head", "table 9", "cross-head", ("spg",), every, layout=_of_cross_head, unit=0.01),
        PaperTable("network-size", "table 10"),
    ]
    return {each.name: each for each in found}


def _of_system(table: str, row: Sequence[Cell], column: str) -> Place:
    title = str(row[0])
    title = title.strip("()") if title.startswith("(") else title
    return Place(title, title, column, (table, title, column))


def _of_capacity(row: Sequence[Cell], column: str) -> Place:
    part, after, title = map(str, row[:3])
    return Place(f"{title}, {part} after task {after}", title, column, ("blocked_share", part, after, title, column))


def _of_pruning(row: Sequence[Cell], column: str) -> Place:
    pruned, _, title = map(str, row[:3])
    return Place(pruned, title, column, ("pruning_accuracy_first_task", pruned, column))


def _of_cross_head(row: Sequence[Cell], column: str) -> Place:
    sequence, task, title = map(str, row[:3])
    path = ("cross_head_importance_fraction", sequence, task, column)
    return Place(f"{column} at task {task}", title, sequence, path)


def trends(table: Table) -> Table:
    """Figures have no published numbers: only whether a curve rises or falls, where the seeds allow a statement."""
    places = [name for name in table.columns if name.isdigit() and name != "0"]
    label = table.labels
    rows: list[Row] = []
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        rise = cells.get("slope")
        if not isinstance(rise, Value):
            steepness = slope([cell.mean for name in places if isinstance(cell := cells[name], Value)])
            rise = None if steepness is None else Value(steepness, digits=2, signed=True)
        rows.append((*row[:label], rise, _trend(rise)))
    note = "Slope: percentage points from one task to the next. A trend needs a 95 % interval over seeds without 0."
    return Table("Trends", (*table.columns[:label], "slope", "trend"), rows, [note], labels=label)


def _trend(rise: Value | None) -> str:
    if rise is None or rise.interval is None:
        return "not known: too few seeds"
    low, high = rise.interval
    return "rises" if low > 0 else "falls" if high < 0 else "none found"


def statistics_of_sequences(names: Sequence[str], data: Path | None) -> Table:
    """Tasks, classes and images of each sequence, counted in the data where they are found."""
    rows: list[Row] = []
    notes = []
    for name in names:
        checked, facts = check_one(name, data), sequence_facts(name)
        notes += [] if checked.sizes else [f"{name}: {'; '.join(checked.problems)}"]
        ours = checked.sizes or (facts.tasks, facts.classes, None, None, None)
        paper = sizes_in_paper(name) or (None,) * len(Sizes._fields)
        for what, here, there in zip(Sizes._fields, ours, paper, strict=True):
            verdict = "none: no data" if here is None else "held" if here == there else "not held"
            rows.append((name, what, here, there, None if there is None else verdict))
    columns = ("sequence", "what", "ours", "paper", "verdict")
    return Table("Statistics of the sequences", columns, rows, notes, labels=2)


def network_sizes() -> list[Table]:
    """The counts, and which of them round to the number that the paper prints."""
    counted = ANALYSES["network-size"]([])
    rows: list[Row] = []
    for title, what, *counts in counted.rows:
        for sequence, count in zip(counted.columns[2:], counts, strict=True):
            paper = paper_value("network_size_millions", str(title), sequence)
            if what == "parameters" and isinstance(count, int) and paper is not None:
                verdict = "held" if agrees(count, paper) else "not held"
                rows.append((sequence, title, Value(count / 1e6), Value(paper), verdict))
    held = sum(row[-1] == "held" for row in rows)
    notes = ("Held: equal as printed, to 0.1 million.", f"{held} of {len(rows)} held.")
    columns = ("sequence", "method", "ours, millions", "paper, millions", "verdict")
    return [counted, Table("Ours and the paper's", columns, rows, notes, labels=2)]
