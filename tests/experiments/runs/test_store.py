"""The contents of a run's folder, and the treatment of folders that are damaged, foreign or of another release."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun, StoreError
from softmask.storage.lease import FolderBusyError
from tests.experiments.runs.examples import files_below, tiny_config


def lines(run: Path) -> list[bytes]:
    return (run / "events.jsonl").read_bytes().splitlines(keepends=True)


def test_a_finished_run_tells_its_config_events_and_accuracies(whole_run: StoredRun) -> None:
    assert whole_run.config == tiny_config()
    assert whole_run.path.name == tiny_config().id()
    assert whole_run.status == "finished"
    kinds = [event["kind"] for event in whole_run.events()]
    one_task, both = ["epoch", "epoch", "task"], ["accuracy", "accuracy", "without_id", "without_id"]
    assert kinds == ["started", *one_task, "accuracy", "without_id", *one_task, *both, "finished"]
    matrix = whole_run.accuracies()
    assert {after: list(row) for after, row in matrix.items()} == {0: [0], 1: [0, 1]}
    assert all(0 <= accuracy <= 100 for row in matrix.values() for accuracy in row.values())
    assert list(whole_run.task_names()) == [0, 1]


def test_a_finished_run_leaves_one_checkpoint_and_no_traces_of_writing(whole_run: StoredRun) -> None:
    expected = ["checkpoints", "checkpoints/001.safetensors", "config.json", "events.jsonl", "lease.lock"]
    assert files_below(whole_run.path) == expected


def test_every_event_is_a_whole_line_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        for number in range(3):
            writer.event("note", number=number, text="two\nlines")
            assert len(lines(writer.path)) == number + 1
            assert json.loads(lines(writer.path)[-1]) == {"kind": "note", "number": number, "text": "two\nlines"}


def test_a_line_torn_anywhere_is_skipped_by_readers_and_cut_by_the_next_writer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(tiny_config()) as writer:
        writer.event("note", number=0)
        writer.event("note", number=1)
    whole = (writer.path / "events.jsonl").read_bytes()
    first = len(lines(writer.path)[0])
    for length in range(first, len(whole)):
        (writer.path / "events.jsonl").write_bytes(whole[:length])
        assert [event["number"] for event in StoredRun(writer.path).events()] == [0]
        with store.open(tiny_config()) as again:
            again.event("note", number=1)
        assert (writer.path / "events.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\0\n",
        b"\xff\xfe\n",
        b"no json\n",
        b"[1, 2]\n",
        b'{"no": "kind"}\n',
        b'{"kind": 3}\n',
        b'{"kind": "accuracy"}\n',
        b'{"kind": "accuracy", "after": 0, "task": 0, "validation": 0.5, "test": null}\n',
        b'{"kind": "epoch", "task": "x", "epoch": [1]}\n',
        b"\n\n",
    ],
)
def test_lines_that_are_no_events_are_skipped(copied_run: StoredRun, whole_run: StoredRun, garbage: bytes) -> None:
    events = copied_run.path / "events.jsonl"
    events.write_bytes(garbage + garbage.join(lines(copied_run.path)) + garbage)
    assert copied_run.events() == whole_run.events()
    assert copied_run.finished


def test_work_that_was_done_again_counts_once_with_its_last_value(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        curve = {"lr": 0.1, "train_loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.5}
        writer.event("epoch", task=0, epoch=0, seconds=1.0, **curve)
        writer.event("accuracy", after=0, task=0, test=0.25)
        writer.event("epoch", task=0, epoch=0, seconds=2.0, **curve)
        writer.event("accuracy", after=0, task=0, test=0.5)
        writer.event("epoch", task=1, epoch=0, seconds=3.0, **curve)
    run = StoredRun(writer.path)
    assert [event["seconds"] for event in run.events("epoch")] == [2.0, 3.0]
    assert run.accuracies() == {0: {0: 50.0}}


def test_status_follows_the_last_turn(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        run = StoredRun(writer.path)
        assert run.status == "unfinished"
        for kind, status in (("started", "unfinished"), ("failed", "failed"), ("started", "unfinished")):
            writer.event(kind)
            assert run.status == status
        writer.event("finished")
        assert run.status == "finished"


def test_two_writers_on_one_run(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(tiny_config()) as first:
        with pytest.raises(FolderBusyError, match="is being written by process"), store.open(tiny_config()):
            pass
        first.event("note")


def test_a_writer_that_lost_its_lease_writes_nothing_more(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        writer.event("note")
        (writer.path / "lease.json").write_text('{"token": "another"}')
        for write in (
            lambda: writer.event("note"),
            lambda: writer.save_stage(0, {}),
            lambda: writer.save_progress(0, {}),
        ):
            with pytest.raises(FolderBusyError, match="taken over"):
                write()
    assert len(lines(writer.path)) == 1
    assert not list(writer.path.rglob("*.safetensors"))


def test_a_writer_that_cannot_begin_gives_the_lease_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.open(tiny_config()) as writer:
        pass
    (writer.path / "checkpoints").rmdir()
    (writer.path / "checkpoints").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write to"), store.open(tiny_config()):
        pass
    (writer.path / "checkpoints").unlink()
    with store.open(tiny_config()) as again:
        again.event("note")


def test_only_the_last_checkpoint_is_kept_unless_all_are_wanted(tmp_path: Path) -> None:
    for keep, expected in (("last", ["002"]), ("all", ["000", "001", "002"])):
        with Store(tmp_path / keep).open(tiny_config(), keep=keep) as writer:
            for stage in range(3):
                writer.save_progress(stage, {})
                writer.save_stage(stage, {"stage": stage})
                assert writer.stages_done() == stage + 1
                assert writer.load_stage() == {"stage": stage}
                assert writer.load_progress(stage + 1) is None
        assert sorted(file.stem for file in (writer.path / "checkpoints").iterdir()) == expected


def test_progress_is_saved_as_often_as_asked(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config(), checkpoint_every=3) as writer:
        saved = []
        for epoch in range(7):
            writer.save_progress(0, {"epoch": epoch})
            saved.append(writer.load_progress(0))
    assert saved == [None, None, {"epoch": 2}, {"epoch": 2}, {"epoch": 2}, {"epoch": 5}, {"epoch": 5}]


def test_progress_of_another_stage_is_not_used(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        writer.save_progress(0, {"epoch": 1})
        assert writer.load_progress(0) == {"epoch": 1}
        assert writer.load_progress(1) is None


def test_foreign_files_among_checkpoints_are_not_taken_for_stages(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        for name in ("notes.txt", "000.safetensors.tmp", "9 best.safetensors"):
            (writer.path / "checkpoints" / name).touch()
        assert writer.stages_done() == 0


def test_more_than_a_thousand_stages(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        writer.save_stage(999, {})
        writer.save_stage(1000, {})
        assert writer.stages_done() == 1001


def test_foreign_empty_and_half_made_folders_are_no_runs(whole_run: StoredRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("tea")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json.tmp").write_text('{"form')
    (tmp_path / "file").touch()
    store = Store(tmp_path)
    assert list(store.runs()) == []
    assert len(store.problems()) == 3
    assert all("config.json cannot be read" in problem for problem in store.problems())


def test_a_folder_without_config_becomes_a_run(tmp_path: Path) -> None:
    """A kill between making the folder and writing the config leaves an empty folder, or half a file beside it."""
    folder = tmp_path / tiny_config().id()
    folder.mkdir()
    (folder / "config.json.tmp").write_text('{"form')
    store = Store(tmp_path)
    assert store.find(tiny_config()) is None
    with store.open(tiny_config()):
        pass
    assert not (folder / "config.json.tmp").exists()
    found = store.find(tiny_config())
    assert found is not None
    assert found.config == tiny_config()


def write_config(run: StoredRun, content: Any) -> None:
    (run.path / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "config.json cannot be read"),
        ('{"format": 1, "conf', "config.json cannot be read"),
        ({"format": 2, "config": {}}, "has format 2; this release reads 1: use the one that wrote it"),
        ({"config": {}}, "has format None"),
        ([], "has format None"),
        ({"format": 1}, "is not the config of a run"),
        ({"format": 1, "config": 3}, "is not the config of a run"),
        ({"format": 1, "config": {"method": "gone", "sequence": 5}}, "sequence must be a name"),
        ({"format": 1, "config": {**tiny_config().to_dict(), "more": 1}}, "there is no field 'more'"),
    ],
)
def test_a_damaged_or_foreign_config_is_refused_with_its_place(
    copied_run: StoredRun, content: Any, message: str
) -> None:
    write_config(copied_run, content)
    store = Store(copied_run.path.parent)
    with pytest.raises(StoreError) as caught:
        store.find(tiny_config())
    assert message in str(caught.value)
    assert str(copied_run.path) in str(caught.value)
    assert list(store.runs()) == []
    assert store.problems() == [str(caught.value)]


def test_a_config_that_was_changed_by_hand_is_noticed(copied_run: StoredRun) -> None:
    write_config(copied_run, {"format": 1, "config": tiny_config(seed=2).to_dict()})
    with pytest.raises(StoreError, match="was changed after the run began"):
        Store(copied_run.path.parent).find(tiny_config())


@pytest.mark.parametrize("lost", ["accuracy", "task"])
def test_lost_results_are_noticed_instead_of_averaged_away(copied_run: StoredRun, lost: str) -> None:
    kept = [line for line in lines(copied_run.path) if json.loads(line)["kind"] != lost]
    (copied_run.path / "events.jsonl").write_bytes(b"".join(kept))
    store = Store(copied_run.path.parent)
    with pytest.raises(StoreError, match=r"events\.jsonl lacks results of tasks that were learned"):
        store.find(tiny_config())
    assert list(store.runs()) == []
    with pytest.raises(StoreError, match="lacks results"), store.open(tiny_config()):
        pass


def test_events_of_a_sound_file_share_the_names_of_their_fields(copied_run: StoredRun) -> None:
    names = [{id(name) for name in event} for event in copied_run.events("accuracy")]
    assert len(names) > 1
    assert all(each == names[0] for each in names), "a store of a thousand runs would take twice the memory"


def test_reading_changes_nothing(copied_run: StoredRun) -> None:
    (copied_run.path / "events.jsonl").open("ab").write(b'{"kind": "torn')
    before = {path: path.read_bytes() for path in copied_run.path.rglob("*") if path.is_file()}
    run = StoredRun(copied_run.path)
    run.events(), run.accuracies(), run.task_names(), run.status, run.checkpoint(1)
    assert {path: path.read_bytes() for path in copied_run.path.rglob("*") if path.is_file()} == before


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        writer.event("note", number=0)
        before = (writer.path / "events.jsonl").read_bytes()

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"cannot write .*events\.jsonl: .*No space left on device"):
            writer.event("note", number=1)
        monkeypatch.undo()
        assert (writer.path / "events.jsonl").read_bytes() == before
        writer.event("note", number=1)
    assert [event["number"] for event in StoredRun(writer.path).events()] == [0, 1]


def test_listeners_hear_every_event_once_it_is_on_disk(tmp_path: Path) -> None:
    heard: list[tuple[dict[str, Any], int]] = []
    config = tiny_config(tasks=1)
    store = Store(tmp_path)

    def listen(event: dict[str, Any]) -> None:
        stored = store.find(config)
        assert stored is not None
        heard.append((event, len(stored.events())))

    done = run(config, store, listeners=[listen])
    assert [event for event, _ in heard] == done.events()
    assert [count for _, count in heard] == list(range(1, len(heard) + 1))


def test_without_tests_only_validation_is_measured(tmp_path: Path) -> None:
    done = run(tiny_config(), Store(tmp_path), tests=False)
    assert done.finished
    assert not done.accuracies("test")
    assert sorted(done.accuracies("validation")[1]) == [0, 1]


def test_a_copied_folder_counts_once(copied_run: StoredRun) -> None:
    store = Store(copied_run.path.parent)
    again = copied_run.path.with_name(copied_run.path.name + ".bak")
    shutil.copytree(copied_run.path, again)
    assert [run.path for run in store.runs()] == [copied_run.path]
    (problem,) = store.problems()
    assert str(again) in problem
    assert "a copy counts once" in problem


def test_events_that_cannot_be_read_are_a_problem_of_their_folder(copied_run: StoredRun) -> None:
    events = copied_run.path / "events.jsonl"
    events.unlink()
    events.mkdir()
    store = Store(copied_run.path.parent)
    assert not list(store.runs())
    assert "cannot be read" in store.problems()[0]


def test_what_is_measured_twice_counts_once(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        for test in (0.1, 0.2):
            writer.event("pruning", strategy="Nothing", ranked_over="backbone", test=test, classes=2)
            writer.event("representation", onto="R-10", union=False, learned=1, classes=2, test=test)
    (run,) = Store(tmp_path).runs()
    assert [[event["test"] for event in run.events(kind)] for kind in ("pruning", "representation")] == [[0.2], [0.2]]
