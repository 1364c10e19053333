"""A grid of six cells: a pool of two workers against serial runs on one and on two threads, and what the grid adds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import softmask.experiments.runs.grid as grid_module
from softmask.experiments.executors import Executor, ProcessExecutor, SerialExecutor
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store

from .timing import Report

METHODS, SEEDS, EPOCHS = ["ncl"], [1, 2, 3, 4, 5, 6], 6


def six_cells(epochs: int) -> Grid:
    changes = {"network.width": 1.0, "training.epochs": epochs}
    return Grid.of(METHODS, ["D-5"], SEEDS, preset="short", changes=changes)


def serial(threads: int, epochs: int, folder: str) -> None:
    """Plain runs one after the other, without a grid. Prints the seconds, without the start of Python."""
    start = time.perf_counter()
    for config in six_cells(epochs).configs:
        run(config, Store(folder), threads=threads)
    print(time.perf_counter() - start)


def gridded(jobs: int, epochs: int, folder: str) -> None:
    """The same cells as a grid: in this process if there is one job, else in a pool. The seconds inside the runs, too.

    What the grid adds is far less than the runs differ from one time to the next: it is told within one time.
    """
    executor: Executor = ProcessExecutor(jobs=jobs) if jobs > 1 else SerialExecutor()
    inside = 0.0

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal inside
        began = time.perf_counter()
        done = run(*arguments, **options)
        inside += time.perf_counter() - began
        return done

    grid_module.run = timed  # type: ignore[attr-defined]
    start = time.perf_counter()
    states = {cell.state for cell in six_cells(epochs).run(Store(folder), executor)}
    print(inside, time.perf_counter() - start)
    assert states == {"finished"}


def in_a_process(function: str, number: int, epochs: int) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as folder:
        code = f"from benchmarks.grid import {function}; {function}({number}, {epochs}, {folder!r})"
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return tuple(float(word) for word in done.stdout.split())


def digests_agree(epochs: int) -> bool:
    """One cell alone, to be sure that all of this computes the same."""
    with tempfile.TemporaryDirectory() as folder:
        config = make_config("ncl", "D-5", preset="short", changes={"training.epochs": epochs, "network.width": 1.0})
        one, two = (run(config, Store(Path(folder) / name)).events("finished")[0]["weights"] for name in "ab")
        return bool(one == two)


def main(epochs: int = EPOCHS, rounds: int = 2) -> None:
    variants = {
        "serial, one thread": ("serial", 1),
        "serial, two threads": ("serial", 2),
        "grid in process": ("gridded", 1),
        "grid, pool of two": ("gridded", 2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    added: list[float] = []
    for _ in range(rounds):  # in turn, so that whatever disturbs the machine disturbs all alike
        for name, (function, number) in variants.items():
            *inside, whole = in_a_process(function, number, epochs)
            seconds[name].append(whole)
            if name == "grid in process":
                added.append(whole / inside[0] - 1)
    best = {name: min(values) for name, values in seconds.items()}
    one, pool = best["serial, one thread"], best["grid, pool of two"]
    rows: list[tuple[Any, ...]] = [
        (name, f"{value:.1f} s", f"{one / value:.2f} x", f"{3600 * 6 / value:,.0f}") for name, value in best.items()
    ]
    notes = [
        f"pool against serial on one thread: {one / pool:.2f} x (wanted: at least 1.7)",
        f"pool against serial on two threads: {best['serial, two threads'] / pool:.2f} x (wanted: at least 1)",
        f"overhead of the grid: {100 * max(added):.2f} % of the time inside the runs (wanted: below 3 %)",
        f"equal weights: {digests_agree(1)}",
    ]
    columns = ("six cells", "time", "against serial, one thread", "cells an hour")
    Report("grid", columns, rows, notes).publish({"seconds": seconds, "added": added})


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
