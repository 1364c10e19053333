"""An interrupted run, continued, ends with the same events and the same weights as one that never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from softmask.experiments.runs.run import load, run
from softmask.experiments.runs.store import Store, StoredRun, StoreError
from softmask.learning import protocol
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.task import Task
from tests.experiments.runs.examples import outcome, tiny_config


class Stop(KeyboardInterrupt):
    """Interrupts a run, as a kill would: the run has nothing to say about it."""


def interrupted(store: Store, epochs: int) -> Path:
    """A run's folder as it is when the process ends in its n-th epoch."""
    seen = 0

    def stop(_: Task, __: Fit) -> None:
        nonlocal seen
        seen += 1
        if seen == epochs:
            raise Stop

    with pytest.raises(Stop):
        run(tiny_config(), store, watch=stop)
    return store.root / tiny_config().id()


def test_a_finished_run_returns_at_once(copied_run: StoredRun) -> None:
    before = (copied_run.path / "events.jsonl").read_bytes()

    def never(_: Task, __: Fit) -> None:
        raise AssertionError("nothing is to be trained")

    again = run(tiny_config(), Store(copied_run.path.parent), watch=never)
    assert again.path == copied_run.path
    assert (copied_run.path / "events.jsonl").read_bytes() == before


def test_the_time_before_an_interruption_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 10))
    monkeypatch.setattr(protocol.time, "monotonic", lambda: float(next(clock)))
    interrupted(Store(tmp_path), 2)
    before = Store(tmp_path).find(tiny_config()).events("epoch")[0]["seconds"]
    task = run(tiny_config(), Store(tmp_path)).events("task")[0]
    fresh = run(tiny_config(), Store(tmp_path / "fresh")).events("task")[0]
    assert task["learn_seconds"] >= fresh["learn_seconds"] > before


@pytest.mark.parametrize("epochs", [1, 2, 3, 4])
def test_interrupted_in_any_epoch(whole_run: StoredRun, tmp_path: Path, epochs: int) -> None:
    store = Store(tmp_path)
    interrupted(store, epochs)
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


def test_a_resumed_run_does_not_repeat_saved_epochs(tmp_path: Path) -> None:
    store = Store(tmp_path)
    interrupted(store, 4)  # in the second epoch of the second task: the first is saved
    trained = []
    run(tiny_config(), store, watch=lambda task, fit: trained.append((task.id, fit.epoch)))
    assert trained == [(1, 2)]


def test_the_last_line_torn_at_every_byte(
    copied_run: StoredRun, whole_run: StoredRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the last event is `finished`: a kill while it is written leaves all else in place."""
    sequence = load(tiny_config(), None)
    monkeypatch.setattr(
        "softmask.experiments.runs.run.load", lambda *_: sequence
    )  # a hundred resumes need not split data anew
    events, store = copied_run.path / "events.jsonl", Store(copied_run.path.parent)
    whole = events.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for length in range(last, len(whole)):
        events.write_bytes(whole[:length])
        assert outcome(run(tiny_config(), store)) == outcome(whole_run)


@pytest.mark.parametrize("left", [1, 40, -1])
def test_an_epochs_line_torn(whole_run: StoredRun, tmp_path: Path, left: int) -> None:
    store = Store(tmp_path)
    events = interrupted(store, 3) / "events.jsonl"
    whole = events.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    assert json.loads(whole[last:])["kind"] == "epoch"
    events.write_bytes(whole[: last + left] if left > 0 else whole[:left])
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


def test_killed_after_the_results_but_before_the_checkpoint(whole_run: StoredRun, tmp_path: Path) -> None:
    """The task ends a second time: its results are told once, and nothing is measured on stale weights."""
    store = Store(tmp_path)
    with pytest.MonkeyPatch.context() as patch:

        def die(*_: object) -> None:
            raise Stop

        patch.setattr("softmask.experiments.runs.store.RunWriter.save_stage", die)
        with pytest.raises(Stop):
            run(tiny_config(), store)
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


def test_killed_after_the_checkpoint_but_before_tidying_up(whole_run: StoredRun, tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = interrupted(store, 2)
    progress = (folder / "progress.safetensors").read_bytes()
    with pytest.raises(Stop):
        run(tiny_config(), store, watch=stop_in_second_task)
    (folder / "progress.safetensors").write_bytes(progress)  # of the first task, which is saved by now
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


def stop_in_second_task(task: Task, _: Fit) -> None:
    if task.id == 1:
        raise Stop


def damage(file: Path, how: str) -> None:
    content = file.read_bytes()
    middle = len(content) - 100
    damaged = {
        "empty": b"",
        "truncated": content[:middle],
        "garbage": b"\xff" * 1000,
        "one bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
    }
    file.write_bytes(damaged[how])


@pytest.mark.parametrize("how", ["empty", "truncated", "garbage", "one bit"])
def test_damaged_progress_costs_the_task_not_the_run(whole_run: StoredRun, tmp_path: Path, how: str) -> None:
    store = Store(tmp_path)
    folder = interrupted(store, 4)
    damage(folder / "progress.safetensors", how)
    trained = []
    with pytest.warns(UserWarning, match=r"cannot read .*progress\.safetensors.*the task is learned from its start"):
        done = run(tiny_config(), store, watch=lambda task, fit: trained.append((task.id, fit.epoch)))
    assert trained == [(1, 1), (1, 2)]
    assert outcome(done) == outcome(whole_run)


@pytest.mark.parametrize("name", ["progress.safetensors.tmp", "checkpoints/001.safetensors.tmp", "config.json.tmp"])
def test_half_written_files_are_ignored(whole_run: StoredRun, tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    (interrupted(store, 4) / name).write_bytes(b"half of")
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


@pytest.mark.parametrize("how", ["empty", "truncated", "garbage", "one bit"])
def test_a_damaged_checkpoint_is_told_in_one_line_and_may_be_deleted(
    whole_run: StoredRun, tmp_path: Path, how: str
) -> None:
    store = Store(tmp_path)
    checkpoint = interrupted(store, 3) / "checkpoints" / "000.safetensors"
    damage(checkpoint, how)
    with pytest.raises(StoreError) as caught:
        run(tiny_config(), store)
    assert str(checkpoint) in str(caught.value)
    assert "delete this file" in str(caught.value)
    assert "\n" not in str(caught.value)
    checkpoint.unlink()
    assert outcome(run(tiny_config(), store)) == outcome(whole_run)


def test_an_error_inside_a_method_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("in the method")

    monkeypatch.setattr("softmask.methods.spg.SPG.end_task", broken)
    with pytest.raises(ZeroDivisionError):
        run(tiny_config(), Store(tmp_path))
    (failed,) = Store(tmp_path).runs()
    assert failed.status == "failed"
    assert failed.events("failed")[0]["message"] == "ZeroDivisionError: in the method"


def test_divergence_is_written_down(tmp_path: Path) -> None:
    config = tiny_config("ncl", changes={"training.lr": 1e30, "lr_min": 1e30})
    with pytest.raises(DivergedError, match="diverged"):
        run(config, Store(tmp_path))
    (failed,) = Store(tmp_path).runs()
    assert failed.status == "failed"
    assert failed.events("failed")[0]["reason"] == "diverged"
