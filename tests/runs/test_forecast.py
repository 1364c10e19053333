"""What a run will take: each part against what a run does."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.learning.catalogue import METHODS
from softmask.runs import forecast as forecasts
from softmask.runs.forecast import forecast
from softmask.runs.rehearsal import rehearse, total_looks
from softmask.runs.run import load, run
from softmask.runs.store import Store
from tests.runs.examples import tiny_config


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


def test_a_large_method_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("supsup")
    monkeypatch.setattr(forecasts, "LARGE", 1)
    monkeypatch.setattr(forecasts, "rehearse", lambda *_: pytest.fail("it was"))
    expected = forecast(config, load(config, None))
    assert expected.seconds > 0
    assert expected.disk_bytes > expected.kept_bytes > 0


def test_a_rehearsal_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = tiny_config()
    found = rehearse(config, load(config, None))
    assert list(tmp_path.iterdir()) == []
    assert min(found.image, found.look, found.event, found.saving) > 0


def test_images_that_will_be_looked_at_are_counted() -> None:
    """Against the plain sum over the rows of the accuracy matrix."""
    config = tiny_config("ncl", tasks=4)
    sequence = load(config, None)
    sizes = [task.val.count + test.count for task, test in zip(sequence.tasks, sequence.tests, strict=True)]
    rows = [(after, task) for after in range(4) for task in range(after + 1)]
    assert total_looks(sequence.tasks, sequence.tests, sequence.tasks) == (sum(sizes[t] for _, t in rows), len(rows))


def test_dearer_with_more_tasks_where_the_method_says_so() -> None:
    assert METHODS.load("tag").cost is not METHODS.load("ncl").cost
    few, many = (tiny_config("tag", tasks=tasks) for tasks in (2, 5))
    assert forecast(many, load(many, None)).disk_bytes > 1.5 * forecast(few, load(few, None)).disk_bytes
