"""Runs whose numbers are known by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softmask.experiments.analyses.table import Table
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.store import Store, StoredRun

Matrix = Mapping[int, Mapping[int, float]]


def triangle(rows: Sequence[Sequence[float]]) -> dict[int, dict[int, float]]:
    """Rows of percentages as shares: `triangle([[90], [70, 80]])`."""
    return {after: {task: value / 100 for task, value in enumerate(row)} for after, row in enumerate(rows)}


def stored(
    store: Store,
    config: RunConfig,
    matrix: Matrix,
    *,
    names: Sequence[str] | None = None,
    facts: Sequence[Mapping[str, Any]] = (),
    seconds: Sequence[tuple[float, float]] = (),
    validation: float = 0.0,
    ended: str | None = "finished",
) -> StoredRun:
    """A run with these results, and these facts and times (learning, end) for its tasks."""
    with store.open(config) as writer:
        writer.event("started")
        for after, row in matrix.items():
            name = names[after] if names else f"task {after}"
            learn, end = seconds[after] if seconds else (1.0, 0.0)
            more = {"learn_seconds": learn, "end_seconds": end, "images": 100, "peak_memory": 2_000_000 * (after + 1)}
            for epoch in range(2):
                curve = {"lr": 0.1, "train_loss": 1 / (epoch + 1), "val_loss": 1.5 / (epoch + 1), "val_accuracy": 0.5}
                writer.event("epoch", task=after, epoch=epoch, seconds=1.0, **curve)
            writer.event(
                "task", task=after, ids=[after], name=name, classes=2, facts=facts[after] if facts else {}, **more
            )
            for task, share in row.items():
                writer.event("accuracy", after=after, task=task, validation=validation, test=share)
        if ended == "finished":
            writer.event("finished")
        elif ended == "failed":
            writer.event("failed", reason="diverged", message="no finite loss")
    return StoredRun(writer.path)


def rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def row(table: Table, **wanted: Any) -> dict[str, Any]:
    """The one row with these cells."""
    (found,) = [each for each in rows(table) if all(each[name] == value for name, value in wanted.items())]
    return found
