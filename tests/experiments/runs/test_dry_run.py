"""The estimate of a run: each part against a real run."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.errors import DataError
from softmask.experiments.executors import SerialExecutor
from softmask.experiments.runs import dry_run
from softmask.experiments.runs.dry_run import Measured, forecast, forecast_grid, measure, total_evaluations
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import build, load, run
from softmask.experiments.runs.store import Store
from softmask.learning.method import Method
from softmask.learning.registry import METHODS
from tests.experiments.runs.examples import tiny_config


@pytest.mark.parametrize("method", ["ncl", "spg", "mtl", "ewc"])
def test_steps_and_disk_are_those_of_a_run(method: str, tmp_path: Path) -> None:
    config = tiny_config(method, tasks=3, changes={"epochs": 2, "joint_epochs": 2})
    expected = forecast(config, load(config, None))
    done = run(config, Store(tmp_path))
    taken = sum(file.stat().st_size for file in done.path.rglob("*") if file.is_file())
    assert taken / 1.5 < expected.kept_bytes < 1.5 * taken
    assert expected.disk_bytes >= expected.kept_bytes
    assert expected.all_kept_bytes >= expected.kept_bytes
    assert expected.seconds > 0
    assert expected.memory_bytes > 100 * 2**20, "Python and torch alone take more"
    if method != "mtl":
        assert expected.steps == 2 * sum(-(-task.train.count // 64) for task in load(config, None).tasks)


def test_of_a_large_method_plain_training_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    config, made = tiny_config("supsup"), []

    def note(config: object, sequence: object, make: object) -> Measured:
        made.append(type(make()))  # type: ignore[operator]
        return measure(config, sequence, make)  # type: ignore[arg-type]

    monkeypatch.setattr(dry_run, "LARGE", 1)
    monkeypatch.setattr(dry_run, "measure", note)
    expected = forecast(config, load(config, None))
    assert made == [Method]
    assert expected.seconds > 0
    assert expected.disk_bytes > expected.kept_bytes > 0


def test_measuring_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = tiny_config()
    sequence = load(config, None)
    found = measure(config, sequence, lambda: build(config, sequence))
    assert list(tmp_path.iterdir()) == []
    assert min(found.event, found.saving, found.image, found.evaluation) > 0


STILL = Measured(2, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 1)
"""A second task that took no time."""


def test_ends_that_grow_are_multiplied_by_what_the_method_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain sum of SPG's own costs, where the end of the second task took as long as they say."""
    config = tiny_config("spg", tasks=5)
    sequence = load(config, None)
    scenario = build(config, sequence).scenario

    def passes(tasks: int) -> float:
        classes = scenario.classes[:tasks]
        return float(METHODS.load("spg").cost(type(scenario)(scenario.input_shape, classes)).task_end_passes)

    second = passes(2) - passes(1)
    monkeypatch.setattr(dry_run, "measure", lambda *_: Measured(2, 0.0, second, 0.0, 0.0, 0.0, 1, 1, 1))
    images = sum(task.train.count for task in sequence.tasks)
    assert forecast(config, sequence).seconds == pytest.approx(images * passes(5) / 5)


def test_nothing_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "measure", lambda *_: STILL)
    config = tiny_config("spg", tasks=5)
    assert forecast(config, load(config, None)).seconds == 0


def test_steps_of_all_candidates_are_counted() -> None:
    """PathNet trains two paths a task, each for half of the epochs here."""
    config = tiny_config("pathnet", changes={"epochs": 10})
    expected = forecast(config, load(config, None))
    assert expected.steps == 2 * 5 * sum(-(-task.train.count // 64) for task in load(config, None).tasks)


def test_images_that_will_be_evaluated_are_counted() -> None:
    """Against the plain sum over the rows of the accuracy matrix."""
    config = tiny_config("ncl", tasks=4)
    sequence = load(config, None)
    sizes = [task.val.count + test.count for task, test in zip(sequence.tasks, sequence.tests, strict=True)]
    rows = [(after, task) for after in range(4) for task in range(after + 1)]
    assert total_evaluations(sequence.tasks, sequence.tests, sequence.tasks) == (
        sum(sizes[t] for _, t in rows),
        len(rows),
    )


def test_dearer_with_more_tasks_where_the_method_says_so() -> None:
    assert METHODS.load("tag").cost is not METHODS.load("ncl").cost
    few, many = (tiny_config("tag", tasks=tasks) for tasks in (2, 5))
    assert forecast(many, load(many, None)).disk_bytes > 1.5 * forecast(few, load(few, None)).disk_bytes


def test_a_grid_measures_each_config_once_and_tells_what_it_does(tmp_path: Path) -> None:
    store, told = Store(tmp_path), []
    changes = {"width": 0.0625, "epochs": 1}
    grid = Grid.of(["ncl", "one"], ["D-5"], [1, 2, 3], preset="short", tasks=1, changes=changes)
    list(Grid(grid.configs[:1]).run(store, SerialExecutor()))
    expected = forecast_grid(grid.cells(store), store, None, jobs=2, watch=told.append)
    assert len(told) == 2
    assert "ncl on D-5 (1 of 2)" in told[0]
    assert [cell.state for cell in expected.cells] == ["finished", *["missing"] * 5]
    assert expected.seconds > 0
    assert not expected.unknown


def test_a_sequence_without_its_data_has_no_estimate(tmp_path: Path) -> None:
    store = Store(tmp_path)
    expected = forecast_grid(Grid.of(["ncl"], ["C-10"], [1]).cells(store), store, None, jobs=1)
    assert list(expected.unknown) == ["C-10"]
    with pytest.raises(DataError):
        load(Grid.of(["ncl"], ["C-10"], [1]).configs[0], None)
