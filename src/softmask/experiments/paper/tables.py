"""What `reproduce` shows: our table, the comparison with the paper, and for figures their trends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from softmask.experiments.analyses import ANALYSES
from softmask.experiments.analyses.network_size import agrees
from softmask.experiments.analyses.statistics import slope
from softmask.experiments.analyses.table import Cell, Table, Value
from softmask.experiments.paper.published import paper_value
from softmask.experiments.paper.recipes import Recipe
from softmask.experiments.paper.verdicts import compare, orders, verdicts
from softmask.experiments.runs.store import StoredRun
from softmask.experiments.sequences import sequence_facts
from softmask.experiments.sequences.checking import Sizes, check_one, sizes_in_paper


def tables_of(recipe: Recipe, runs: Sequence[StoredRun]) -> list[Table]:
    """From finished runs."""
    shown = recipe.show(runs)
    if recipe.layout is None:
        return [shown, trends(shown)]
    comparisons = list(compare(shown, recipe.layout, [run.config for run in runs], recipe.unit))
    if not comparisons:
        said = "No verdict: the paper has no numbers for these runs."
        return [dataclasses.replace(shown, notes=(*shown.notes, said))]
    found = [shown, verdicts(comparisons)]
    return found if any(each.judged for each in comparisons) else [*found, orders(comparisons)]


def trends(table: Table) -> Table:
    """Figures have no published numbers: only whether a curve rises or falls, where seeds allow to say so."""
    places = [i for i, name in enumerate(table.columns) if name.isdigit() and name != "0"]
    label = table.labels
    rows: list[tuple[Cell, ...]] = []
    for row in table.rows:
        told = row[table.columns.index("slope")] if "slope" in table.columns else None
        if not isinstance(told, Value):
            points = [cell.mean for i in places if isinstance(cell := row[i], Value)]
            steepness = slope(points)
            told = None if steepness is None else Value(steepness, digits=2, signed=True)
        rows.append((*row[:label], told, _trend(told)))
    note = (
        "Slope: points from one task to the next. A trend is told only where its 95 % interval over seeds leaves 0 out."
    )
    return Table("Trends", (*table.columns[:label], "slope", "trend"), rows, (note,), labels=label)


def _trend(slope: Value | None) -> str:
    if slope is None or slope.interval is None:
        return "not told: too few seeds"
    low, high = slope.interval
    return "rises" if low > 0 else "falls" if high < 0 else "none that can be told"


def statistics(names: Sequence[str], data: Path | None) -> Table:
    """Tasks, classes and pictures of each sequence, counted in the data where they are there."""
    rows: list[tuple[Cell, ...]] = []
    notes = []
    for name in names:
        checked, facts = check_one(name, data), sequence_facts(name)
        notes += [] if checked.sizes else [f"{name}: {'; '.join(checked.problems)}"]
        ours = checked.sizes or (facts.tasks, facts.classes, None, None, None)
        paper = sizes_in_paper(name) or (None,) * len(Sizes._fields)
        for what, here, there in zip(Sizes._fields, ours, paper, strict=True):
            verdict = (
                None if there is None else "none: no data" if here is None else "held" if here == there else "not held"
            )
            rows.append((name, what, here, there, verdict))
    return Table(
        "Statistics of the sequences", ("sequence", "what", "ours", "paper", "verdict"), rows, tuple(notes), labels=2
    )


def network_sizes() -> list[Table]:
    """The counts, and which of them round to what the paper prints."""
    counted = ANALYSES["network-size"]([])
    rows: list[tuple[Cell, ...]] = []
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
