"""A disk that is full at the worst moment: one clear line, nothing damaged, and the run goes on when there is room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun
from tests.cli.command import softmask, tiny
from tests.experiments.runs.examples import environment, outcome, tiny_command, tiny_config


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str, at: int) -> None:
    """The n-th time that a file of this name is brought to disk, it is full."""
    sync, seen = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal seen
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).name == name:
            seen += 1
            if seen >= at:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to tell which file is written")
@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("config.json.tmp", 1),
        ("events.jsonl", 1),
        ("events.jsonl", 3),
        ("events.jsonl", 7),
        ("progress.safetensors.tmp", 1),
        ("progress.safetensors.tmp", 4),
        ("000.safetensors.tmp", 1),
        ("001.safetensors.tmp", 1),
    ],
)
def test_the_run_ends_with_one_line_and_continues_later(
    whole_run: StoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, at: int
) -> None:
    fill_disk(monkeypatch, name, at)
    ended = softmask(*tiny("spg", "--store", tmp_path))
    monkeypatch.undo()
    assert ended.code == 1
    (error,) = ended.errors()
    assert "No space left on device" in error
    assert name.removesuffix(".tmp") in error
    assert "Traceback" not in ended.err
    left = [path.name for path in tmp_path.rglob("*")]
    assert not [each for each in left if each.endswith(".tmp") or each == "lease.json"]
    assert all(not stored.events("failed") for stored in Store(tmp_path).runs()), "the run itself is all right"
    assert outcome(run(tiny_config(), Store(tmp_path))) == outcome(whole_run)


def test_a_checkpoint_that_is_larger_than_the_disk(whole_run: StoredRun, tmp_path: Path) -> None:
    """A real limit of the operating system, which stops the library that writes tensors in the middle."""
    limited = (
        "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (60_000, 60_000)); from softmask.cli import main; main()"
    )
    arguments = tiny_command(store=tmp_path)[3:]
    ended = subprocess.run(
        [sys.executable, "-c", limited, *arguments], env=environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if line.startswith("error: cannot write")]
    assert "start again" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("*.tmp"))
    assert outcome(run(tiny_config(), Store(tmp_path))) == outcome(whole_run)


@pytest.mark.parametrize("place", ["", "below/it"])
def test_a_file_where_the_store_should_be(tmp_path: Path, place: str) -> None:
    in_the_way = tmp_path / "store"
    in_the_way.write_text("mine")
    ended = softmask(*tiny("spg", "--store", in_the_way / place))
    assert ended.code == 1
    (error,) = ended.errors()
    assert str(in_the_way) in error
    assert "Traceback" not in ended.err
    assert in_the_way.read_text() == "mine"
