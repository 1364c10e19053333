"""Kill -9 at any moment, start again: the run ends as if nothing had happened, to the last bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from tests.experiments.runs.examples import environment, outcome, tiny_command, tiny_config

EPOCHS = 12  # long enough to be hit again and again: an epoch takes some ten milliseconds
PATIENCE = 120  # seconds until a test gives up waiting for a process

Moment = Callable[[Path, Callable[[], bool]], None]
"""Waits in a run's folder for the moment to kill; the function tells whether there is still something to wait for."""


def modified(file: Path) -> int:
    """When a file was last written, in nanoseconds; 0 if it is not there."""
    try:
        return os.stat(file).st_mtime_ns
    except FileNotFoundError:
        return 0


def wait_until(reached: Callable[[], bool], waiting: Callable[[], bool], pause: float = 0.0002) -> None:
    """By default looks more often than a write takes."""
    while waiting() and not reached():
        time.sleep(pause)


def while_writing(folder: Path, waiting: Callable[[], bool]) -> None:
    """The state is half written beside its place."""
    wait_until((folder / "progress.safetensors.tmp").exists, waiting)


def after_writing(folder: Path, waiting: Callable[[], bool]) -> None:
    """The state has just been replaced."""
    file = folder / "progress.safetensors"
    before = modified(file)
    wait_until(lambda: modified(file) not in (before, 0), waiting)


def at_random(generator: random.Random) -> Moment:
    """Some time after the process has begun."""

    def moment(_: Path, __: Callable[[], bool]) -> None:
        time.sleep(generator.uniform(0, 0.3))

    return moment


def start_and_kill(method: str, store: Path, moment: Moment) -> bool:
    """Whether the kill came before the run was finished."""
    folder = store / tiny_config(method, changes={"epochs": EPOCHS}).id()
    lease = folder / "lease.json"
    before = modified(lease)
    with subprocess.Popen(
        tiny_command(method, store=store, epochs=EPOCHS),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + PATIENCE

        def waiting() -> bool:
            return process.poll() is None and time.monotonic() < deadline

        wait_until(lambda: modified(lease) not in (before, 0), waiting, pause=0.01)
        moment(folder, waiting)
        process.kill()
    return process.returncode == -signal.SIGKILL


def killed_again_and_again(method: str, folder: Path, moments: list[Moment]) -> int:
    """Kills a run at all these moments, finishes it, compares it with an undisturbed one; tells how many kills hit."""
    config = tiny_config(method, changes={"epochs": EPOCHS})
    kills = sum(start_and_kill(method, folder / "killed", moment) for moment in moments)
    survivor = run(config, Store(folder / "killed"))
    assert outcome(survivor) == outcome(run(config, Store(folder / "whole")))
    assert len(survivor.events("started")) > 1, "the run was resumed, not only finished"
    return kills


def test_killed_while_writing_after_writing_and_at_random(tmp_path: Path) -> None:
    moments = [while_writing, after_writing, at_random(random.Random(1))]
    assert killed_again_and_again("spg", tmp_path, moments) >= 2


@pytest.mark.slow
def test_killed_twenty_times(tmp_path: Path) -> None:
    generator = random.Random(2)
    moments = [generator.choice([while_writing, after_writing, at_random(generator)]) for _ in range(20)]
    assert killed_again_and_again("spg", tmp_path, moments) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ncl", "one"])
def test_other_methods_killed(tmp_path: Path, method: str) -> None:
    moments = [while_writing, after_writing, at_random(random.Random(3))]
    assert killed_again_and_again(method, tmp_path, moments) >= 2
