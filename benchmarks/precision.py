"""The effect of bfloat16 on accuracy: the same runs in both precisions, seed by seed, on the built-in data.

`python -m benchmarks precision`; with SOFTMASK_STORE, runs that are there already are reused. Some ten minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from softmask.experiments.analyses.table import Value
from softmask.experiments.executors import ProcessExecutor
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.report.tables import cell_text
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.store import Store

from .step import native_bf16
from .timing import Report

METHODS, SEQUENCES, SEEDS = ["ncl", "spg"], ["D-5", "R-10"], [1, 2, 3, 4, 5]
PRECISIONS = ("fp32", "bf16")


def accuracies(store: Store, method: str, sequence: str, precision: str) -> list[float]:
    configs = [
        make_config(method, sequence, preset="short", seed=seed, changes={"precision": precision}) for seed in SEEDS
    ]
    found = [store.find(config) for config in configs]
    return [average_accuracy(run.accuracies()) for run in found if run is not None]


def measure(store: Store) -> list[tuple[Any, ...]]:
    for precision in PRECISIONS:
        grid = Grid.of(METHODS, SEQUENCES, SEEDS, preset="short", changes={"precision": precision})
        states = {cell.state for cell in grid.run(store, ProcessExecutor())}
        assert states <= {"finished"}, states
    rows: list[tuple[Any, ...]] = []
    for sequence in SEQUENCES:
        for method in METHODS:
            wide, low = (accuracies(store, method, sequence, precision) for precision in PRECISIONS)
            told = (f"{statistics.mean(some):.1f} +- {statistics.stdev(some):.1f}" for some in (wide, low))
            gained = Value.with_interval([b - a for a, b in zip(wide, low, strict=True)])
            rows.append((sequence, method, *told, cell_text(gained)))
    return rows


def main() -> None:
    if not native_bf16():
        print("This processor has no native bfloat16: nothing is measured.")
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Store(Path(os.environ.get("SOFTMASK_STORE", folder))))
    columns = ("sequence", "method", "ACC, fp32", "ACC, bf16", "bf16 - fp32, paired")
    note = f"Preset short, {len(SEEDS)} seeds; in percent, with the standard deviation; the last column with its 95 % "
    Report("precision", columns, rows, [note + "interval."]).publish({})


if __name__ == "__main__":
    main()
