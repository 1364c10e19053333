"""One writer at a time: live ones are respected, dead ones replaced, and a lost lease is noticed."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import multiprocessing.synchronize
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import SoftmaskError
from softmask.storage import lease as lease_module
from softmask.storage.lease import FolderBusyError, Lease, opened_if_plain


def claim(folder: Path, **fields: object) -> Path:
    """A lease as somebody else would have written it."""
    with Lease(folder) as lease:
        written = json.loads(lease.path.read_text())
    lease.path.write_text(json.dumps({**written, "token": "another", **fields}))
    return lease.path


def test_the_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    with Lease(tmp_path), pytest.raises(FolderBusyError) as caught, Lease(tmp_path):
        pass
    message = str(caught.value)
    assert str(tmp_path) in message
    assert f"process {os.getpid()} on {socket.gethostname()}" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["lease.lock", "lease.json.tmp"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    """A folder from elsewhere may hold links to files that are none of its business."""
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.write_text("dear to its owner")
    (folder / name).symlink_to(other)
    if name == "lease.lock":
        with pytest.raises(SoftmaskError, match=r"lease\.lock"), Lease(folder):
            pass
    else:
        with Lease(folder):
            pass
    assert other.read_text() == "dear to its owner"


def test_is_released_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:
        assert lease.path.exists()
    assert not lease.path.exists()
    with pytest.raises(ZeroDivisionError), Lease(tmp_path):
        raise ZeroDivisionError
    with Lease(tmp_path):
        pass


def test_a_refused_writer_does_not_release_the_others_lease(tmp_path: Path) -> None:
    with Lease(tmp_path) as first:
        with pytest.raises(FolderBusyError), Lease(tmp_path):
            pass
        first.require()


def _hold(folder: Path, holding: multiprocessing.synchronize.Event) -> None:
    with Lease(folder):
        holding.set()
        time.sleep(60)


def test_a_live_process_is_respected_and_a_dead_one_replaced_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    holding = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, holding))
    holder.start()
    assert holding.wait(30)
    with pytest.raises(FolderBusyError, match=f"process {holder.pid} "), Lease(tmp_path):
        pass
    holder.kill()
    holder.join()
    assert (tmp_path / "lease.json").exists(), "a killed process releases nothing"
    with Lease(tmp_path) as lease:
        lease.require()


def test_held_sees_a_live_holder_and_not_a_dead_one(tmp_path: Path) -> None:
    other = Lease(tmp_path)
    assert not other.held()
    with Lease(tmp_path):
        assert other.held()
    assert not other.held()
    claim(tmp_path)
    assert not other.held()
    assert not Lease(tmp_path / "nowhere").held()


def test_without_file_locks_the_heartbeat_counts_on_the_same_machine_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with Lease(tmp_path) as lease:
        assert Lease(tmp_path).held()
        with pytest.raises(FolderBusyError), Lease(tmp_path):
            pass
        lease.require()
    with Lease(tmp_path):
        pass


def test_a_second_name_of_a_file_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("dear to its owner")
    os.link(tmp_path / "file", tmp_path / "history.jsonl")
    with pytest.raises(SoftmaskError):
        opened_if_plain(tmp_path / "history.jsonl", os.O_WRONLY | os.O_APPEND)
    os.close(opened_if_plain(tmp_path / "history.jsonl", os.O_RDONLY))


def test_another_process_with_the_same_number_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    claim(tmp_path, pid=os.getpid())
    with Lease(tmp_path) as lease:
        lease.require()


def test_of_a_holder_on_another_machine_the_heartbeat_counts(tmp_path: Path) -> None:
    path = claim(tmp_path, pid=1, host="elsewhere")
    assert Lease(tmp_path).held()
    with pytest.raises(FolderBusyError, match="process 1 on"), Lease(tmp_path):
        pass
    long_ago = time.time() - 61
    os.utime(path, (long_ago, long_ago))
    with Lease(tmp_path) as lease:
        lease.require()


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"pid": "x"}'])
def test_a_damaged_lease_is_free_when_its_heartbeat_is_old(tmp_path: Path, content: str) -> None:
    path = claim(tmp_path)
    path.write_text(content)
    long_ago = time.time() - 61
    os.utime(path, (long_ago, long_ago))
    with Lease(tmp_path) as lease:
        lease.require()


def test_the_heartbeat_keeps_the_lease_young(tmp_path: Path) -> None:
    with Lease(tmp_path, beat=0.01) as lease:
        os.utime(lease.path, (0, 0))
        deadline = time.monotonic() + 30
        while lease.path.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lease.path.stat().st_mtime > 0


def test_a_lost_lease_is_noticed_at_the_next_write_and_left_to_its_holder(tmp_path: Path) -> None:
    with Lease(tmp_path) as lease:  # the heartbeat is far away
        lease.require()
        lease.path.write_text(json.dumps({"token": "another"}))
        with pytest.raises(FolderBusyError, match="taken over by another process"):
            lease.require()
    assert json.loads(lease.path.read_text())["token"] == "another"


def test_the_heartbeat_notices_a_new_holder_for_good(tmp_path: Path) -> None:
    with Lease(tmp_path, beat=0.01) as lease:
        own = lease.path.read_text()
        lease.path.write_text(json.dumps({"token": "another"}))
        assert lease._thread is not None
        lease._thread.join(30)
        lease.path.write_text(own)
        with pytest.raises(FolderBusyError, match="taken over"):
            lease.require()


def test_a_removed_folder_is_noticed_and_one_that_comes_back_is_still_ours(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Lease(folder, beat=0.01) as lease:
        folder.rename(tmp_path / "moved")
        time.sleep(0.1)  # several beats
        with pytest.raises(FolderBusyError, match="or removed"):
            lease.require()
        (tmp_path / "moved").rename(folder)
        lease.require()


def test_a_moment_in_which_it_cannot_be_read_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "PAUSES", (0.0, 0.0, 0.0))
    read, failures = lease_module.opened_if_plain, iter([True, True])

    def now_and_then(path: Path, flags: int) -> int:
        if path.name == "lease.json" and next(failures, False):
            raise OSError("stale file handle")
        return read(path, flags)

    with Lease(tmp_path) as lease:
        monkeypatch.setattr(lease_module, "opened_if_plain", now_and_then)
        lease.require()


def test_a_pipe_or_a_date_far_ahead_holds_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lease.json")
    old = time.time() - 3600
    os.utime(tmp_path / "lease.json", (old, old))
    with Lease(tmp_path) as lease:
        lease.require()
    lease.path.write_text(json.dumps({"token": "another", "host": "elsewhere"}))
    ahead = time.time() + 3600  # more than clocks differ
    os.utime(lease.path, (ahead, ahead))
    with Lease(tmp_path):
        pass


def test_a_heartbeat_by_a_clock_that_is_ahead_of_ours_counts(tmp_path: Path) -> None:
    lease = Lease(tmp_path)
    lease.path.write_text(json.dumps({"token": "another", "host": "elsewhere"}))
    ahead = time.time() + 120
    os.utime(lease.path, (ahead, ahead))
    assert lease.held()


@pytest.fixture
def slow_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves all others time to act between looking for a holder and becoming it."""
    look = Lease._holder

    def slowly(lease: Lease) -> dict[str, Any] | None:
        found = look(lease)
        time.sleep(0.02)
        return found

    monkeypatch.setattr(Lease, "_holder", slowly)


@pytest.mark.usefixtures("slow_look")
def test_of_eight_threads_that_race_exactly_one_wins(tmp_path: Path) -> None:
    start, finish = threading.Barrier(8), threading.Barrier(8)
    results: list[str] = []

    def race() -> None:
        start.wait()
        try:
            with Lease(tmp_path):
                results.append("won")
                finish.wait(30)
        except FolderBusyError:
            results.append("refused")
            finish.wait(30)

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["refused"] * 7 + ["won"]


WON, REFUSED = 10, 11


def _race(folder: Path, together: multiprocessing.synchronize.Barrier) -> None:
    together.wait(30)
    try:
        with Lease(folder):
            together.wait(30)
            sys.exit(WON)
    except FolderBusyError:
        together.wait(30)
        sys.exit(REFUSED)


@pytest.mark.usefixtures("slow_look")
def test_of_eight_processes_that_race_for_a_dead_ones_folder_exactly_one_wins(tmp_path: Path) -> None:
    claim(tmp_path, pid=1)
    context = multiprocessing.get_context("fork")
    together = context.Barrier(8)
    processes = [context.Process(target=_race, args=(tmp_path, together)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(process.exitcode or 0 for process in processes) == [WON] + [REFUSED] * 7
