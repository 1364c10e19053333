"""The index of a store is only a cache: with it, without it and with a wrong one, a store looks the same."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import INDEX_FORMAT, Index, Store, StoredRun
from softmask.experiments.runs.stored_run import signature
from softmask.learning.registry import METHODS
from tests.experiments.runs.examples import tiny_config


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMASK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def store(whole_run: StoredRun, tmp_path: Path) -> Store:
    """One finished run, one cut short, one without its results; all written long ago."""
    root = tmp_path / "store"
    for name in ("finished", "cut", "lacking"):
        shutil.copytree(whole_run.path, root / name)
    lines = (root / "cut" / "events.jsonl").read_text().splitlines()
    (root / "cut" / "events.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    (root / "lacking" / "events.jsonl").write_text(lines[0] + "\n")
    for path in (root, *root.rglob("*")):
        os.utime(path, (1e9, 1e9))
    return Store(root)


def seen(store: Store) -> list[object]:
    return [(r.path.name, r.config, r.summary()) if isinstance(r, StoredRun) else r for r in store.look()]


def index_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "cache" / "stores").iterdir()
    return file


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose events were read."""
    found: list[str] = []
    usual = StoredRun._read

    def note(stored: StoredRun) -> object:
        found.append(stored.path.name)
        return usual(stored)

    monkeypatch.setattr(StoredRun, "_read", note)
    return found


def test_the_second_look_sees_the_same_and_reads_nothing(store: Store, reads: list[str]) -> None:
    first = seen(store)
    statuses = [entry[2].status for entry in first if isinstance(entry, tuple)]
    assert statuses == ["unfinished", "finished"]
    assert "lacks results" in str(first[-1])
    assert set(reads) == {"finished", "cut", "lacking"}
    reads.clear()
    assert seen(store) == first
    assert reads == []
    assert store.problems() == [first[-1]]


def test_what_changed_is_read_again(store: Store, reads: list[str]) -> None:
    seen(store)
    reads.clear()
    with (store.root / "cut" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "failed", "message": "why"}) + "\n")
    assert [stored.status for stored in store.runs()] == ["failed", "finished"]
    assert set(reads) == {"cut"}


def test_a_run_that_goes_on_is_seen_by_who_holds_it(store: Store) -> None:
    (cut, _) = store.runs()
    assert cut.status == "unfinished"
    with (cut.path / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "finished", "weights": "w"}) + "\n")
    assert cut.finished


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_text("[]"),
        lambda file: file.write_text(json.dumps({"format": 0, "runs": {"finished": {}}})),
        lambda file: file.write_text(json.dumps({"format": INDEX_FORMAT, "runs": {"finished": {"signature": [1]}}})),
        lambda file: file.write_text(file.read_text().replace('"seeds": [1', '"seeds": ["1"')),
        lambda file: file.write_text(file.read_text().replace('"configs": {"', '"configs": {"other-')),
        lambda file: file.write_text(file.read_text().replace('"status"', '"state"')),
        lambda file: file.unlink(),
    ],
)
def test_a_spoilt_index_changes_nothing(store: Store, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    first = seen(store)
    spoil(index_file(tmp_path))
    assert seen(store) == first
    assert json.loads(index_file(tmp_path).read_text())["format"] == INDEX_FORMAT


def test_nowhere_to_keep_it_is_no_problem(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = seen(store)
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTMASK_CACHE", str(tmp_path / "file"))
    assert seen(store) == first


def test_the_store_itself_is_only_read(store: Store) -> None:
    before = sorted(store.root.rglob("*"))
    seen(store)
    assert sorted(store.root.rglob("*")) == before


def test_a_folder_written_just_now_is_not_kept(tmp_path: Path) -> None:
    """It may change within the same tick of the clock."""
    store = Store(tmp_path / "young")
    run(tiny_config("ncl", tasks=1, changes={"epochs": 1}), store)
    assert len(list(store.runs())) == 1
    assert store.index()._before == {}


def test_a_partial_look_forgets_nothing_and_a_whole_one_what_is_gone(store: Store, tmp_path: Path) -> None:
    seen(store)
    index = store.index()
    assert index.find(store.root / "cut") is not None
    index.save(of_all=False)
    assert set(store.index()._before) == {"finished", "cut", "lacking"}
    shutil.rmtree(store.root / "cut")
    seen(store)
    assert set(store.index()._before) == {"finished", "lacking"}


def test_a_method_that_is_not_installed_is_shown_with_and_without_the_index(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = seen(store)
    known = {name: entry for name, entry in METHODS._entries.items() if name != "spg"}
    monkeypatch.setattr(METHODS, "_entries", known)
    assert seen(store) == first
    index_file(tmp_path).unlink()
    assert seen(store) == first
    assert first[0][1].method == "spg"  # type: ignore[index]


def test_two_stores_have_two_indices(tmp_path: Path) -> None:
    assert Index(tmp_path / "one").path != Index(tmp_path / "two").path


def test_the_signature_tells_files_apart(tmp_path: Path) -> None:
    empty = signature(tmp_path)
    (tmp_path / "events.jsonl").write_text("a")
    one = signature(tmp_path)
    (tmp_path / "events.jsonl").write_text("ab")
    assert len({empty, one, signature(tmp_path)}) == 3
