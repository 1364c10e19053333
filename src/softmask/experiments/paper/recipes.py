"""For each table and figure of the paper: the methods, sequences and checkpoints behind it, and what shows them."""

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
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.analyses.pruning import measure_pruning
from softmask.experiments.analyses.representation import METHODS as REPRESENTATION_METHODS
from softmask.experiments.analyses.representation import measure_representation
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.paper.verdicts import Layout, Place
from softmask.experiments.runs.grid import PAPER_SEEDS, Changes, Grid
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.method_registry import METHODS

NAMES = (
    *("statistics", "accuracy", "forward-transfer", "backward-transfer", "blocked", "forward-transfer-curves"),
    *("pruning", "representation", "ablation", "blocked-by-layer", "cross-head", "network-size"),
)
Measure = Callable[[StoredRun, Store, Path | None], object]


@dataclass(frozen=True)
class Recipe:
    """One table or figure."""

    name: str
    place: str
    """Where the paper has it."""
    analysis: str | None = None
    """What shows our runs; None where no run is needed."""
    methods: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    with_reference: bool = False
    """Whether every run needs ONE with the same network beside it."""
    keep: str = "last"
    measure: Measure | None = None
    """What is measured on checkpoints after a run."""
    layout: Layout | None = None
    """Where the paper has the cells; None for figures, which have no published numbers."""
    unit: float = 1.0
    wanted: Callable[[Sequence[Cell]], bool] | None = None
    """Which rows of the analysis belong to it."""

    @property
    def needs_runs(self) -> bool:
        return self.analysis is not None

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
        """The runs. The paper has five seeds; what is only tried has one."""
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
        references = [dataclasses.replace(config, method=REFERENCE, settings={}) for config in plain.configs]
        every = {config.id(): config for config in (*references, *plain.configs)}
        return Grid(tuple(every.values()), plain.left_out)

    def show(self, runs: Sequence[StoredRun]) -> Table:
        """Our numbers, the paper's beside them where it has some."""
        assert self.analysis is not None
        table = ANALYSES[self.analysis](runs)
        if self.wanted is None:
            return table
        return dataclasses.replace(table, rows=[row for row in table.rows if self.wanted(row)])


def recipe(name: str) -> Recipe:
    if name not in NAMES:
        raise UnknownName("table", name, NAMES)
    return recipes()[name]


def _by_sequence(table: str) -> Layout:
    def place(row: Sequence[Cell], column: str) -> Place:
        title = str(row[0]).strip("()") if str(row[0]).startswith("(") else str(row[0])
        return Place(title, title, column, (table, title, column))

    return place


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


def _named(titles: Sequence[str]) -> tuple[str, ...]:
    by_title = {METHODS.load(name).title: name for name in METHODS.names()}
    return tuple(by_title[title] for title in titles)


@functools.cache
def recipes() -> dict[str, Recipe]:
    """All of them, in the paper's order."""
    tables = paper_tables()
    every = tuple(tables["sequences"])
    compared = _named(tables["forward_transfer"])
    blocked = Recipe("blocked", "table 5", "capacity", ("hat", "spg"), every, layout=_of_capacity)
    found = [
        Recipe("statistics", "table 1"),
        Recipe(
            "accuracy",
            "table 2",
            "accuracy-by-sequence",
            _named(tables["accuracy"]),
            every,
            layout=_by_sequence("accuracy"),
        ),
        Recipe(
            "forward-transfer",
            "table 3",
            "forward-transfer",
            compared,
            every,
            with_reference=True,
            layout=_by_sequence("forward_transfer"),
        ),
        Recipe(
            "backward-transfer",
            "table 4",
            "backward-transfer",
            compared,
            every,
            layout=_by_sequence("backward_transfer"),
        ),
        dataclasses.replace(blocked, wanted=lambda row: row[0] == WHOLE),
        Recipe(
            "forward-transfer-curves",
            "figures 3 and 5, nine panels",
            "transfer-curve",
            compared,
            every,
            with_reference=True,
        ),
        Recipe(
            "pruning",
            "table 6",
            "pruning",
            ("spg",),
            every,
            keep="all",
            measure=measure_pruning,
            layout=_of_pruning,
        ),
        Recipe(
            "representation",
            "figures 4 and 6, three pairs",
            "representation",
            REPRESENTATION_METHODS,
            ("C-10", "I-100", "T-10"),
            keep="all",
            measure=measure_representation,
        ),
        Recipe(
            "ablation",
            "table 7",
            "ablation",
            _named(tables["ablation_accuracy"]),
            every,
            layout=_by_sequence("ablation_accuracy"),
        ),
        dataclasses.replace(blocked, name="blocked-by-layer", place="table 8", wanted=lambda row: row[0] != WHOLE),
        Recipe("cross-head", "table 9", "cross-head", ("spg",), every, layout=_of_cross_head, unit=0.01),
        Recipe("network-size", "table 10"),
    ]
    return {each.name: each for each in found}
