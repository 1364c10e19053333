"""Two processes of one thread against one process of two threads: images a second in all, and runs an hour."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import torch

from .setup import BATCH, at_last_task
from .step import our_step
from .timing import Report

SECONDS = 20.0


def trained_images(threads: int) -> None:
    """Prints how many images a second this process trains, from when all are ready."""
    torch.set_num_threads(threads)
    step = our_step(at_last_task("spg"))
    for _ in range(3):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        step()
        steps += 1
    print(steps * BATCH / (time.perf_counter() - start), flush=True)


def together(processes: int, threads: int) -> float:
    code = f"from benchmarks.processes import trained_images; trained_images({threads})"
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    answers = []
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in started:
        answers.append(float(process.communicate()[0]))
    return sum(answers)


def main() -> None:
    rows: list[tuple[Any, ...]] = []
    found = {
        f"{processes} x {threads}": together(processes, threads) for processes, threads in ((1, 1), (1, 2), (2, 1))
    }
    # A run of C-10 with the short preset trains 10 tasks x 10 epochs x 4,500 images.
    for name, speed in found.items():
        rows.append((name, f"{speed:,.0f}", f"{speed / found['1 x 2']:.2f} x", f"{3600 * speed / 450_000:.1f}"))
    columns = ("processes x threads", "images/s", "against 1 x 2", "C-10 short runs an hour (training steps alone)")
    Report("processes", columns, rows, []).publish(found)


if __name__ == "__main__":
    main()
