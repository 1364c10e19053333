"""Sequences that need data: what is said when the data are missing or damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.cli.command import softmask


def run_cifar(*more: object) -> tuple[int, list[str]]:
    ended = softmask("run", "--method", "ncl", "--sequence", "C-10", *more)
    assert ended.out == ""
    return ended.code, ended.err.splitlines()


def test_without_a_folder(tmp_path: Path) -> None:
    code, lines = run_cifar("--store", tmp_path / "store")
    assert code == 1
    assert len(lines) == 1
    assert "--data" in lines[0]
    assert "SOFTMASK_DATA" in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("verb", [[], ["--dry-run"]])
def test_a_folder_that_is_not_there(tmp_path: Path, verb: list[str]) -> None:
    missing = tmp_path / "missing"
    code, lines = run_cifar("--store", tmp_path / "store", "--data", missing, *verb)
    assert code == 1
    assert len(lines) == 1
    assert str(missing) in lines[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "content", [b"", b"no archive", gzip.compress(b"\0" * 100_000)[:-20]], ids=["empty", "text", "gzip cut short"]
)
def test_a_damaged_archive(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "cifar-100-python.tar.gz"
    archive.write_bytes(content)
    code, lines = run_cifar("--store", tmp_path / "store", "--data", tmp_path)
    assert code == 1
    assert len(lines) == 1
    assert lines[0].startswith("error:")
    assert str(archive) in lines[0]
    assert not (tmp_path / "store").exists()
