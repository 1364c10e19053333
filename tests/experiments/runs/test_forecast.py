"""What a run will take: each part against what a run does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from softmask.experiments.runs import forecast as forecasts
from softmask.experiments.runs.forecast import forecast
from softmask.experiments.runs.rehearsal import Rehearsal, Stage, rehearse, total_looks
from softmask.experiments.runs.run import load, run
from softmask.experiments.runs.store import Store
from softmask.learning.method_registry import METHODS
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


def test_a_large_method_is_not_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config("supsup")
    monkeypatch.setattr(forecasts, "LARGE", 1)
    monkeypatch.setattr(forecasts, "rehearse", lambda *_, **__: pytest.fail("it was"))
    expected = forecast(config, load(config, None))
    assert expected.seconds > 0
    assert expected.disk_bytes > expected.kept_bytes > 0


def test_a_rehearsal_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = tiny_config()
    found = rehearse(config, load(config, None))
    assert list(tmp_path.iterdir()) == []
    assert min(found.event, found.saving) > 0
    assert sum(each.image + each.look for each in found.stages) > 0


def test_what_grows_is_rehearsed_later_too() -> None:
    config = tiny_config("spg", tasks=4)
    assert {each.task for each in rehearse(config, load(config, None), grows=True).stages} == {2, 3, 4}
    assert {each.task for each in rehearse(config, load(config, None)).stages} == {2}
    config = tiny_config("spg", tasks=2)
    assert {each.task for each in rehearse(config, load(config, None), grows=True).stages} == {2}, "there is no later"


@pytest.mark.parametrize(
    ("method", "grows"),
    [("ncl", False), ("spg-no-chi", False), ("ewc", False), ("spg", True), ("a-gem", True), ("pathnet", True)],
)
def test_whether_a_later_rehearsal_is_asked_for(method: str, grows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(*args: object, **wishes: object) -> Rehearsal:
        asked.append(wishes["grows"])
        return STILL

    monkeypatch.setattr(forecasts, "rehearse", note)
    config = tiny_config(method, tasks=5)
    forecast(config, load(config, None))
    assert asked == [grows]


STILL = Rehearsal((Stage(2, 0.0, 0.0, 0.0),), 0.0, 0.0, 1, 1, 1, 1, 1)
"""Two tasks that took no time."""


def took(*stages: Stage) -> Callable[..., Rehearsal]:
    return lambda *_, **__: replace(STILL, stages=stages)


def test_ends_that_grow_are_summed_task_by_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old head costs an eighth of the second end here, not what SPG's formula says: two rehearsals tell."""
    ends = [8.0 - (1 / 3 + 0.3) / 0.3, 8.0, 9.0, 10.0, 11.0]  # the first is without the forward pass of old heads
    monkeypatch.setattr(forecasts, "rehearse", took(*(Stage(task, 0.0, ends[task - 1], 0.0) for task in (2, 3, 4))))
    config = tiny_config("spg", tasks=5)
    sequence = load(config, None)
    plain = sum(task.train.count * end for task, end in zip(sequence.tasks, ends, strict=True))
    assert forecast(config, sequence).seconds == pytest.approx(plain, rel=0.01)  # tasks count as equally large


def test_looks_that_grow_with_the_columns_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task t is looked at through t columns; a rehearsal tells the mean over its tasks."""
    monkeypatch.setattr(forecasts, "rehearse", took(*(Stage(task, 0.0, 0.0, (task + 1) / 2) for task in (2, 4))))
    config = tiny_config("pgn", tasks=5)
    sequence = load(config, None)
    images = [task.val.count + test.count for task, test in zip(sequence.tasks, sequence.tests, strict=True)]
    plain = sum(images[task] * (task + 1) for done in range(5) for task in range(done + 1))
    assert forecast(config, sequence).seconds == pytest.approx(plain, rel=0.01)  # tasks count as equally large


def test_noise_is_averaged_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line through all that was measured, not through the first and the last."""
    ends = {2: 8.0, 3: 9.5, 4: 9.5, 5: 11.0}  # 8, 9, 10, 11, two of them disturbed
    monkeypatch.setattr(forecasts, "rehearse", took(*(Stage(task, 0.0, end, 0.0) for task, end in ends.items())))
    config = tiny_config("spg", tasks=5)
    sequence = load(config, None)
    plain = sum(task.train.count * end for task, end in zip(sequence.tasks, (5.9, 8, 9, 10, 11), strict=True))
    assert forecast(config, sequence).seconds == pytest.approx(plain, rel=0.03)


def test_what_gets_cheaper_is_foretold_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """PathNet: modules that earlier tasks own are not trained any more."""
    config = tiny_config("pathnet", tasks=5)
    sequence = load(config, None)
    seconds = []
    for later in (1.0, 0.5):
        monkeypatch.setattr(forecasts, "rehearse", took(Stage(2, 1.0, 0.0, 0.0), Stage(4, later, 0.0, 0.0)))
        seconds.append(forecast(config, sequence).seconds)
    assert seconds[1] < seconds[0]


def test_steps_of_all_candidates_are_counted() -> None:
    """PathNet trains two paths a task, each for half of the epochs here."""
    config = tiny_config("pathnet", changes={"epochs": 10})
    expected = forecast(config, load(config, None))
    assert expected.steps == 2 * 5 * sum(-(-task.train.count // 64) for task in load(config, None).tasks)


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
