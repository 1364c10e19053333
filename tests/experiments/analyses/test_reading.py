"""A store read once: every folder is a run or is told with the reason why not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from softmask.experiments.analyses.reading import read_store
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store, StoredRun
from tests.experiments.analyses.made import stored, triangle

WHOLE = triangle([[90], [70, 80]])


def test_in_memory_is_as_on_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), WHOLE)
    stored(store, make_config("hat", "C-10"), triangle([[90]]), ended="failed")
    stored(store, make_config("ncl", "C-10"), triangle([[90]]), ended=None)
    for run in read_store(store).runs:
        disk = StoredRun(run.path)
        assert run.events() == disk.events()
        assert run.events("accuracy") == disk.events("accuracy")
        assert (run.finished, run.status, run.accuracies()) == (disk.finished, disk.status, disk.accuracies())


def spoil(folder: Path, kind: str, **changes: object) -> None:
    """Changes the last event of a kind; None takes a field out."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    last = [event for event in events if event["kind"] == kind][-1]
    for name, value in changes.items():
        last[name] = value
        if value is None:
            del last[name]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("accuracy", {"test": "many"}),
        ("task", {"name": None}),
        ("task", {"learn_seconds": None}),
        ("task", {"ids": [0, 1, 2]}),
        ("task", {"facts": 3}),
    ],
)
def test_damaged_events_are_left_out_with_a_reason(tmp_path: Path, kind: str, changes: dict[str, object]) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), WHOLE)
    spoil(stored(store, make_config("ncl", "C-10"), WHOLE).path, kind, **changes)
    reading = read_store(store)
    assert [run.config.method for run in reading.runs] == ["spg"]
    ((folder, reason),) = reading.left_out
    assert folder.startswith("ncl_C-10")
    assert "damaged events" in reason or "lacks results of tasks that were learned" in reason


def test_foreign_folders_are_left_out_with_a_reason(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10"), WHOLE)
    (tmp_path / "holiday pictures").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text('{"format": 99}')
    (tmp_path / "a file").write_text("no folder")
    reading = read_store(store)
    assert len(reading.runs) == 1
    told = dict(reading.left_out)
    assert set(told) == {"a", "holiday pictures"}
    assert "format 99" in told["a"]
    assert "cannot be read" in told["holiday pictures"]


def test_a_copied_folder_is_no_other_seed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = stored(store, make_config("spg", "C-10"), WHOLE)
    shutil.copytree(run.path, tmp_path / "copy")
    reading = read_store(store)
    assert [found.path for found in reading.runs] == [run.path]
    ((folder, reason),) = reading.left_out
    assert (folder, "a copy counts once" in reason) == ("copy", True)
