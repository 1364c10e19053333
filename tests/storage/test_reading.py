"""Files are read without running anything in them, and whatever is wrong with one is said in a line that names it."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from softmask.errors import DataError
from softmask.storage.reading import files_of_folder, members_of_archive, read_plain
from tests.experiments.sequences.pickling import add_member, write_archive

NAMES, LARGEST = ("train", "meta"), 100_000


def read_archive(path: Path) -> dict[str, bytes]:
    return {file.name: file.stream.read() for file in members_of_archive(path, "set", NAMES, LARGEST)}


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as error:
        read_archive(path)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_members_are_read_in_any_order_and_others_are_passed_over(tmp_path: Path) -> None:
    members = {"./set/meta": b"second", "set/file.txt~": b"x" * 5000, "set/train": b"first", "other/train": b"no"}
    assert read_archive(write_archive(tmp_path / "a.tar.gz", members)) == {"meta": b"second", "train": b"first"}


def test_members_need_not_be_read_to_the_end(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {"set/train": b"t" * 9000, "set/meta": b"m"})
    assert [(file.name, file.size) for file in members_of_archive(path, "set", NAMES, LARGEST)] == [
        ("train", 9000),
        ("meta", 1),
    ]


def test_md5_is_of_the_whole_file_however_much_was_read(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {"set/train": b"abc" * 1000, "set/meta": b""})
    train = next(members_of_archive(path, "set", NAMES, LARGEST))
    train.stream.read(10)
    assert train.md5() == hashlib.md5(b"abc" * 1000).hexdigest()


@pytest.mark.parametrize("name", ["../set/train", "set/../../train", "/set/train", "/etc/passwd"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {name: b"x", "set/train": b"t", "set/meta": b"m"})
    assert "leads out" in refusal(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("name", ["set/train", "set/other"])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes, name: str) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add_member(tar, name, kind, "/etc/passwd")
    assert "neither a plain file nor a folder" in refusal(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    """Nothing may wait for a pipe, or read a device until memory is full."""
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(OSError, match=r"regular|directory") as caught:
        read_plain(path, 10)
    assert caught.value.errno in (errno.EINVAL, errno.EISDIR)


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add_member(tar, "set/train", tarfile.DIRTYPE)
    assert "a folder where a file is expected" in refusal(path)


def test_a_member_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name in ("set/train", "set/meta", "set/train"):
            add_member(tar, name, tarfile.REGTYPE)
    assert "set/train twice" in refusal(path)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    assert "lacks set/meta" in refusal(write_archive(tmp_path / "a.tar.gz", {"set/train": b"t"}))


def test_a_declared_size_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    header = tarfile.TarInfo("set/train")
    header.size = 1 << 40
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf()))
    assert "at most 100000 are expected" in refusal(path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_decompression_bomb_is_refused_wherever_it_hides(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("set/other")
    header.type, header.size = kind, 30_000_000
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(header.tobuf() + bytes(header.size), compresslevel=1))
    assert "unpacks to more than" in refusal(path)


def test_an_archive_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_archive(tmp_path / "whole.tar.gz", {"set/train": bytes(range(256)) * 20, "set/meta": b"m"})
    content, path = whole.read_bytes(), tmp_path / "cut.tar.gz"
    for length in range(0, len(content) - 1, 7):
        path.write_bytes(content[:length])
        refusal(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive at all", gzip.compress(b"no tar" * 500), b"\x1f\x8b" + bytes(range(200))],
    ids=["empty", "text", "gzip of no tar", "gzip in name only"],  # a gzip holds the time: no name for a test
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(content)
    refusal(path)


def test_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_archive(tmp_path / "a.tar.gz", {"set/train": b"t", "set/meta": b"m"})
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    read_archive(path)
    assert not list(elsewhere.iterdir())
    assert list(tmp_path.iterdir()) in ([path, elsewhere], [elsewhere, path])


def test_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train").write_bytes(b"t")
    (tmp_path / "meta").write_bytes(b"m")
    assert [file.stream.read() for file in files_of_folder(tmp_path, NAMES, LARGEST)] == [b"t", b"m"]


def too_large(folder: Path) -> None:
    (folder / "train").write_bytes(bytes(LARGEST + 1))


def a_folder(folder: Path) -> None:
    (folder / "train").mkdir()


@pytest.mark.parametrize(
    ("spoil", "reason"), [(too_large, "at most"), (a_folder, "no such file"), (lambda _: None, "no such file")]
)
def test_files_of_a_folder_that_are_not_as_expected(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    spoil(tmp_path)
    with pytest.raises(DataError, match=reason) as error:
        list(files_of_folder(tmp_path, NAMES, LARGEST))
    assert str(tmp_path / "train") in str(error.value)
