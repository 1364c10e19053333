"""`softmask list`: methods, sequences and runs, for people and for programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.sequences import SEQUENCES
from softmask.learning.method import FAMILIES
from softmask.learning.registry import METHODS
from tests.cli.command import Ended, softmask


def test_methods() -> None:
    listed = softmask("list", "methods")
    assert listed.code == 0
    assert all(any(line.split()[:1] == [name] for line in listed.out.splitlines()) for name in METHODS.names())
    rows = softmask("list", "methods", "--json").json()["rows"]
    assert sorted(row["name"] for row in rows) == METHODS.names()
    met = list(dict.fromkeys(row["family"] for row in rows))
    assert met == [family for family in FAMILIES if family in met], "each family once, in its order"
    kept = {row["name"]: row["old data kept"] for row in rows}
    assert (kept["a-gem"], kept["ncl"]) == ("13 images a class", "")


def test_the_card_of_a_method() -> None:
    card = METHODS.entry("spg").card
    assert softmask("list", "methods", "spg").out.startswith(card + "\n")
    told = softmask("list", "methods", "spg", "--json").json()
    assert (told["name"], told["in the paper"], told["card"]) == ("spg", "SPG", card)


def test_what_can_be_set_stands_below_the_card() -> None:
    printed = softmask("list", "methods", "ewc").out
    assert "Settings, as in `--set settings.strength=400`:" in printed
    assert "strength = 400  (float; searched: 1 to 100000, log scale)\n    Regularisation strength." in printed
    rows = {row["name"]: row for row in softmask("list", "methods", "ewc", "--json").json()["settings"]}
    assert rows["strength"]["search"] == {"low": 1.0, "high": 1e5, "log": True, "choices": None}
    assert (rows["fisher_batch"]["default"], rows["fisher_batch"]["search"]) == (20, None)
    assert f"Dropout: drop1=0.2 drop2=0.5 by default ({METHODS.load('ewc').dropout_source})" in printed
    assert "Settings" not in softmask("list", "methods", "one").out, "ONE has none"


def test_the_card_of_an_unknown_method() -> None:
    ended = softmask("list", "methods", "spgg")
    assert ended.code == 2
    assert ended.errors() == [ended.err.strip()]
    assert "did you mean 'spg'?" in ended.err


def test_sequences() -> None:
    rows = {row["name"]: row for row in softmask("list", "sequences", "--json").json()["rows"]}
    assert list(rows) == SEQUENCES.names()
    assert (rows["D-5"]["tasks"], rows["D-5"]["classes"], rows["D-5"]["data"]) == (5, 2, "built in")
    assert "cifar-100-python.tar.gz" in rows["C-10"]["data"]


@pytest.mark.parametrize("what", ["methods", "sequences"])
def test_one_line_a_row_without_a_terminal(what: str) -> None:
    """Nothing is folded to eighty columns."""
    listed = softmask("list", what)
    rows = softmask("list", what, "--json").json()["rows"]
    beginnings = [line.split()[0] for line in listed.out.splitlines() if line.strip()]
    names = [row["name"] for row in rows]
    assert [word for word in beginnings if word in names] == names


def test_runs(with_one: Ended, store: Path) -> None:
    listed = softmask("list", "runs", "--store", store)
    assert listed.code == 0
    rows = softmask("list", "runs", "--store", store, "--json").json()["rows"]
    assert {(row["method"], row["state"], row["tasks done"]) for row in rows} == {
        ("one", "finished", 2),
        ("spg", "finished", 2),
    }
    assert all(row["folder"] in listed.out for row in rows), "a folder's name is not folded"
    assert {(row["sequence"], row["changed"]) for row in rows} == {("D-5[:2]", "width=0.0625")}


def test_runs_of_an_empty_store(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing"):
        listed = softmask("list", "runs", "--store", place)
        assert listed.code == 0
        assert "no run there yet: `softmask run` makes one" in listed.err
        assert softmask("list", "runs", "--store", place, "--json").json()["rows"] == []


def test_folders_that_are_no_runs_are_told(with_one: Ended, tmp_path: Path) -> None:
    (tmp_path / "holiday [2024]").mkdir()
    listed = softmask("list", "runs", "--store", tmp_path)
    assert "left out: " in listed.err
    assert "holiday [2024]" in listed.err
