"""Events as numbers over steps: each once."""

from __future__ import annotations

from typing import Any

from softmask.experiments.trackers import Point, PointStream


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
