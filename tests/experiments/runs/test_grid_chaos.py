"""A pool grid whose workers and driver are killed again and again ends like an undisturbed one, to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.executors import ProcessExecutor
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.store import Store
from tests.experiments.runs.examples import environment, outcome

METHODS, SEEDS, EPOCHS = ["ncl", "spg", "hat", "one"], [1, 2, 3], 10
PATIENCE = 500.0
KILLS = 10


def chaos_grid() -> Grid:
    changes = {"width": 0.0625, "epochs": EPOCHS}
    return Grid.of(METHODS, ["D-5"], SEEDS, preset="short", tasks=2, changes=changes)


def command(store: Path, *more: str) -> list[str]:
    """The same cells as a process of its own."""
    options = ["--methods", ",".join(METHODS), "--sequences", "D-5", "--seeds", "1-3", "--preset", "short"]
    options += ["--tasks", "2", "--set", "width=0.0625", "--set", f"epochs={EPOCHS}", "--store", str(store)]
    return [sys.executable, "-m", "softmask", "grid", *options, *more]


@contextmanager
def started(store: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command(store, *more), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers_of(store: Path) -> list[int]:
    """Those that hold a lease and are alive."""
    found = []
    for lease in store.glob("*/lease.json"):
        with suppress(OSError, ValueError, KeyError):
            pid = int(json.loads(lease.read_text())["pid"])
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(pid)
    return found


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def assert_nothing_was_run_twice(store: Path) -> None:
    for folder in store.iterdir():
        kinds = [line["kind"] for line in lines_of(folder)]
        assert kinds.count("finished") == 1
        assert kinds[-1] == "finished", "nothing was begun after the end"


def assert_equal_to_undisturbed(store: Path, folder: Path) -> None:
    whole = Store(folder)
    assert {cell.state for cell in chaos_grid().run(whole, ProcessExecutor(jobs=2))} == {"finished"}
    assert {run.path.name: outcome(run) for run in Store(store).runs()} == {
        run.path.name: outcome(run) for run in whole.runs()
    }


def epochs_in(store: Path) -> int:
    return sum(file.read_bytes().count(b'"epoch", "task"') for file in store.glob("*/events.jsonl"))


def strike(driver: subprocess.Popen[bytes], store: Path, generator: random.Random) -> bool:
    """Kills the driver or a worker, now as soon as one works, now after it got ahead; whether somebody was hit."""
    deadline, before = time.monotonic() + PATIENCE, epochs_in(store)
    ahead = generator.choice([0, 3, 6])

    def too_soon() -> bool:
        return not workers_of(store) or epochs_in(store) < before + ahead

    while too_soon() and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(generator.uniform(0, 0.3))
    workers = workers_of(store)
    if driver.poll() is not None:
        return False
    if workers and generator.random() < 0.6:
        with suppress(ProcessLookupError):
            os.kill(generator.choice(workers), signal.SIGKILL)
            return True
        return False
    driver.kill()
    driver.wait()
    return True


@pytest.mark.slow
def test_killed_ten_times(tmp_path: Path) -> None:
    store, generator, kills = tmp_path / "killed", random.Random(7), 0
    for _ in range(3 * KILLS):
        # A cell whose worker was killed in every attempt counts as failed: here it is not its fault.
        with started(store, "--jobs", "2", "--retry-failed") as driver:
            while kills < KILLS and driver.poll() is None:
                kills += strike(driver, store, generator)
            if driver.poll() is None:
                driver.wait(PATIENCE)
            if driver.returncode == 0:
                break
    assert driver.returncode == 0
    assert kills == KILLS, "it was over too soon"
    assert_nothing_was_run_twice(store)
    assert any(sum(line["kind"] == "started" for line in lines_of(folder)) > 1 for folder in store.iterdir())
    assert_equal_to_undisturbed(store, tmp_path / "whole")


@pytest.mark.slow
def test_two_grids_on_one_store_share_the_work(tmp_path: Path) -> None:
    store = tmp_path / "shared"
    with started(store, "--jobs", "1") as first, started(store, "--jobs", "1") as second:
        assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0)
    assert len(list(store.iterdir())) == len(chaos_grid().configs)
    assert_nothing_was_run_twice(store)
    for folder in store.iterdir():
        kinds = [line["kind"] for line in lines_of(folder)]
        assert kinds.count("started") == 1, "one writer from beginning to end"
        epochs = [(line["task"], line["epoch"]) for line in lines_of(folder) if line["kind"] == "epoch"]
        assert len(epochs) == len(set(epochs))
