"""`softmask data list | check | fetch`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from softmask.experiments.sequences import Download
from softmask.experiments.sequences.fetching import fetch
from tests.cli.command import softmask
from tests.experiments.sequences.generated import write_fceleba, write_folder


@pytest.fixture(autouse=True)
def _cache_of_the_test(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTMASK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten people with the paper's counts."""
    return write_fceleba(tmp_path_factory.mktemp("faces"), {str(person): (440, 80) for person in range(10)})


def test_list_tells_needs_places_homes_and_terms(faces: Path) -> None:
    ended = softmask("data", "list", "--data", faces)
    assert ended.code == 0
    for expected in (
        "needs  cifar-100-python.tar.gz or the folder cifar-100-python",
        "found  C-10: no",
        f"found  FC-10: {faces / 'celeba' / 'data'}",
        "home   https://www.cs.toronto.edu/~kriz/cifar.html",
        "terms  for non-commercial research only",
        "get    softmask data fetch T-10",
    ):
        assert expected in ended.out
    rows = softmask("data", "list", "C-20", "D-5", "--json").json()
    assert [row["sequence"] for row in rows] == ["C-20", "D-5"]
    assert "SOFTMASK_DATA" in rows[0]["found"]


def test_check_compares_what_is_there_with_the_paper(faces: Path) -> None:
    ended = softmask("data", "check", "--data", faces)
    assert ended.code == 1, "FC-20 finds the folder but too few people in it"
    assert ended.errors() == [f"error: {faces / 'celeba' / 'data'}: 10 users, but 20 tasks need as many"]
    table = {line.split()[0]: line for line in ended.out.splitlines() if "/" in line}
    assert "as in the paper" in table["FC-10"]
    assert "4,000 / 4,000" in table["FC-10"]
    assert "not found" in table["I-100"]
    assert "- / 1,000,000" in table["I-100"]


def test_check_of_named_sequences(faces: Path) -> None:
    assert softmask("data", "check", "FC-10", "D-5", "--data", faces).code == 0
    missing = softmask("data", "check", "T-10", "C-10", "--data", faces)
    assert missing.code == 1
    assert len(missing.errors()) == 2, "every problem in one list"
    (row,) = softmask("data", "check", "FC-10", "--data", faces, "--json").json()
    assert row["sizes"] == row["paper"]
    assert row["problems"] == []


def test_check_lists_every_broken_image(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "mine", {"a": {"cats": 5, "dogs": 5}, "b": {"cats": 5, "dogs": 5}})
    assert softmask("data", "check", f"folder:{root}").code == 0
    broken = [root / "a" / "cats" / "1.png", root / "b" / "dogs" / "3.png"]
    for path in broken:
        path.write_bytes(b"broken")
    ended = softmask("data", "check", f"folder:{root}")
    assert ended.code == 1
    assert [str(path) in line for path, line in zip(broken, ended.errors(), strict=True)] == [True, True]


@pytest.mark.parametrize("more", [[], ["--data", "{empty}"]])
def test_check_where_nothing_is(tmp_path: Path, more: list[str]) -> None:
    ended = softmask("data", "check", *[word.format(empty=tmp_path) for word in more])
    assert ended.code == 1
    assert len(ended.errors()) == 1


def test_notices_are_told(tmp_path: Path) -> None:
    write_fceleba(tmp_path, {str(person): (220, 40) for person in range(10)})
    ended = softmask("data", "check", "FC-10", "--data", tmp_path)
    assert ended.code == 0
    assert "counts differ from the paper" in ended.out
    assert "200/20/40 a task" in ended.err
    assert "train 2,000 instead of 4,000" in ended.err


@pytest.mark.parametrize(("name", "where"), [("I-100", "image-net.org"), ("FC-10", "CelebA.html"), ("FE-20", "leaf")])
def test_fetch_says_where_to_go_when_it_cannot(tmp_path: Path, name: str, where: str) -> None:
    ended = softmask("data", "fetch", name, "--data", tmp_path)
    assert ended.code == 1
    assert where in ended.errors()[0]
    assert not list(tmp_path.iterdir())


def test_fetch_needs_a_folder_and_known_names(tmp_path: Path) -> None:
    assert "--data" in softmask("data", "fetch", "C-10").errors()[0]
    assert softmask("data", "fetch", "C-11", "--data", tmp_path).code == 2


def test_fetch_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Download("http://127.0.0.1:9/none", "set.bin", hashlib.md5(b"whole").hexdigest(), 5)
    (tmp_path / "set.bin").write_bytes(b"whole")
    monkeypatch.setattr("softmask.cli.data.fetch_file", _fetch_instead(there))
    ended = softmask("data", "fetch", "C-10", "C-20", "D-5", "--data", tmp_path)
    assert ended.code == 0
    assert ended.out.split() == [str(tmp_path / "set.bin")], "two sequences share one file"
    assert "terms: " in ended.err
    assert "D-5: needs no data" in ended.err


def _fetch_instead(download: Download) -> object:
    def instead(_: Download, folder: Path, **more: object) -> Path:
        return fetch(download, folder)

    return instead
