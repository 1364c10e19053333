"""Trackers get every event once, through interruptions and their own failures."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import UnknownName
from softmask.experiments import trackers
from softmask.experiments.executors import make_executor
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.trackers import Point, PointStream, TrackerMissing, check_trackers, tracked
from softmask.experiments.trackers.backends import BACKENDS
from tests.experiments.runs.examples import environment, tiny_config

CONFIG = tiny_config()


class Heap:
    """A tracker that keeps what it gets."""

    points: list[Point]
    remotes: list[str | None]
    statuses: list[str]
    fail_after: int | None

    def __init__(self, remote: str | None) -> None:
        self.remote = "heap"
        Heap.remotes.append(remote)

    def log(self, point: Point) -> None:
        if Heap.fail_after is not None and len(Heap.points) >= Heap.fail_after:
            raise ConnectionError("no network")
        Heap.points.append(point)

    def flush(self) -> None:
        pass

    def close(self, status: str) -> None:
        Heap.statuses.append(status)


@pytest.fixture(autouse=True)
def heap(monkeypatch: pytest.MonkeyPatch) -> type[Heap]:
    Heap.points, Heap.remotes, Heap.statuses, Heap.fail_after = [], [], [], None
    monkeypatch.setitem(BACKENDS, "tensorboard", lambda run, remote: Heap(remote))
    monkeypatch.setattr(trackers, "installed", lambda module: True)
    return Heap


def all_points(done: StoredRun) -> list[Point]:
    stream = PointStream()
    return [point for event in done.events() for point in stream.points(event)]


def timeless(point: Point) -> str:
    """Without the times, which differ when a task ends a second time."""
    values = {name: value for name, value in point.values.items() if not name.startswith("seconds/")}
    return f"{point.axis} {point.step} {values}"


def tracked_run(store: Store, stop_at: int | None = None) -> None:
    """Stops after so many events, as Ctrl-C would."""
    count = 0

    def stop(_: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == stop_at:
            raise KeyboardInterrupt

    with tracked(CONFIG, store, ["tensorboard"]) as listeners:
        run(CONFIG, store, listeners=[*listeners, stop])


def test_every_event_arrives_once_and_in_order(tmp_path: Path, heap: type[Heap]) -> None:
    tracked_run(Store(tmp_path))
    found = Store(tmp_path).find(CONFIG)
    assert found is not None
    assert heap.points == all_points(found)
    assert len(heap.points) == 4 + 2 + 3 + 3  # epochs, tasks, accuracies, and those without a task id
    assert heap.statuses == ["finished"]
    tracked_run(Store(tmp_path))
    assert len(heap.points) == 12, "a finished run has nothing new to tell"


@pytest.mark.parametrize("stop_at", [2, 4, 5, 8])
def test_an_interrupted_run_gives_nothing_twice(tmp_path: Path, heap: type[Heap], stop_at: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        tracked_run(Store(tmp_path), stop_at)
    tracked_run(Store(tmp_path))
    found = Store(tmp_path).find(CONFIG)
    assert found is not None
    assert len(heap.points) == 12
    assert sorted(map(timeless, heap.points)) == sorted(map(timeless, all_points(found)))
    assert heap.remotes == [None, "heap"], "the tracker's own run is continued"
    assert heap.statuses == ["unfinished", "finished"]


def test_a_finished_run_can_be_sent_later(tmp_path: Path, heap: type[Heap]) -> None:
    done = run(CONFIG, Store(tmp_path))
    tracked_run(Store(tmp_path))
    assert heap.points == all_points(done)


def test_a_tracker_that_fails_does_not_end_the_run_and_gets_the_rest_later(tmp_path: Path, heap: type[Heap]) -> None:
    heap.fail_after = 3
    with pytest.warns(UserWarning, match="tensorboard stopped: ConnectionError: no network; the run goes on;"):
        tracked_run(Store(tmp_path))
    found = Store(tmp_path).find(CONFIG)
    assert found is not None
    assert found.finished
    heap.fail_after = None
    tracked_run(Store(tmp_path))
    assert heap.points == all_points(found)


@pytest.mark.parametrize("content", ["a pipe", "[" * 100_000, "3"])
def test_what_was_sent_is_forgotten_if_its_file_cannot_be_read(tmp_path: Path, heap: type[Heap], content: str) -> None:
    store = Store(tmp_path)
    done = run(tiny_config(tasks=1), store)
    file = done.path / "tracked-tensorboard.json"
    if content == "a pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    with tracked(done.config, store, ["tensorboard"]):
        pass
    assert len(heap.points) == len(all_points(done))


def test_an_unknown_tracker_is_told_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])


def test_a_missing_tracker_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "installed", lambda module: False)
    with pytest.raises(TrackerMissing, match=r"mlflow is not installed: pip install 'softmask\[mlflow\]'"):
        check_trackers(["mlflow"])


def test_none_is_imported_unless_asked_for() -> None:
    code = "import sys; from softmask.cli import VERBS, load_verb; list(map(load_verb, VERBS)); "
    code += "print([n for n in ('mlflow', 'wandb', 'tensorboard') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_grid_sends_cells_that_were_finished_before(tmp_path: Path, heap: type[Heap]) -> None:
    done = run(CONFIG, Store(tmp_path))
    listening = functools.partial(tracked, names=["tensorboard"])
    (cell,) = Grid((CONFIG,)).run(Store(tmp_path), make_executor("serial"), listening=listening)
    assert cell.state == "finished"
    assert heap.points == all_points(done)
    list(Grid((CONFIG,)).run(Store(tmp_path), make_executor("serial"), listening=listening))
    assert heap.points == all_points(done), "and not twice"


def epoch(task: int, number: int) -> dict[str, Any]:
    measured = {"lr": 0.5, "train_loss": 2.0, "val_loss": 1.5, "val_accuracy": 0.25, "seconds": 3.0}
    return {"kind": "epoch", "task": task, "epoch": number, **measured}


def points(*events: dict[str, Any]) -> list[Point]:
    stream = PointStream()
    return [point for event in events for point in stream.points(event)]


def test_epochs_are_counted_over_the_whole_run() -> None:
    found = points(epoch(0, 0), epoch(0, 1), epoch(1, 0))
    assert [point.step for point in found] == [1, 2, 3]
    assert found[2] == Point(
        "epoch", 3, {"lr": 0.5, "task": 1.0, "train/loss": 2.0, "validation/loss": 1.5, "validation/accuracy": 0.25}
    )


def test_work_that_was_done_again_gives_nothing() -> None:
    task = {"kind": "task", "task": 0, "ids": [0], "facts": {"blocked": {"conv1": 0.5}}, "learn_seconds": 1.0}
    accuracy = {"kind": "accuracy", "after": 0, "task": 0, "validation": 0.75}
    found = points({"kind": "started"}, epoch(0, 0), {"kind": "started"}, epoch(0, 0), task, accuracy, task, accuracy)
    assert [point.step for point in found] == [1, 1, 1]
    assert found[1].values == {"seconds/learn": 1.0, "facts/blocked/conv1": 0.5}
    assert found[2].values == {"validation/task 001": 0.75}


def test_what_is_no_number_is_left_out() -> None:
    task = {"kind": "task", "task": 2, "facts": {"path": [1, 2], "similar": True, "name": "x"}}
    assert points(task) == [Point("task", 3, {})]
