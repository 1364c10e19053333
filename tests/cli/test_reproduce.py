"""`softmask reproduce`: every name has its command, and the runs behind a table are run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.paper.reproduction import NAMES
from softmask.experiments.runs.store import Store
from tests.cli.command import Ended, softmask

ROOT = Path(__file__).parents[2]
TINY = ["--preset", "short", "--tasks", 2, "--set", "width=0.0625", "--set", "epochs=1", "--executor", "serial"]


def reproduce(name: str, store: Path, *more: object) -> Ended:
    return softmask("reproduce", name, *TINY, "--sequences", "D-5", "--store", store, *more)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_command(tmp_path: Path, name: str) -> None:
    told = reproduce(name, tmp_path / "store", "--methods", "spg", "--dry-run")
    assert (told.code, told.errors()) == (0, [])
    needs_none = name in ("statistics", "network-size")
    assert ("no run is needed" in told.out) == needs_none
    assert ("missing" in told.out) == (not needs_none)
    assert ("measuring spg on D-5" in told.err) == (not needs_none), "a line while it works"
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name: str) -> None:
    assert f"`softmask reproduce {name}`" in (ROOT / "docs" / "reproducing.md").read_text()


def test_all_methods_are_those_of_the_table(tmp_path: Path) -> None:
    every = reproduce("cross-head", tmp_path, "--methods", "all", "--dry-run")
    assert (every.code, every.errors()) == (0, [])
    assert every.out.splitlines()[0] == reproduce("cross-head", tmp_path, "--dry-run").out.splitlines()[0]


def test_a_file_for_programs_has_nothing_but_the_table() -> None:
    told = softmask("reproduce", "network-size", "--format", "csv")
    assert told.out.startswith("method,")
    assert "the paper's table 10" in told.err


def test_a_wrong_name_is_told_with_the_nearest(tmp_path: Path) -> None:
    ended = reproduce("prunning", tmp_path)
    assert ended.code == 2
    assert "did you mean 'pruning'" in ended.errors()[0]


def test_runs_are_done_once_and_shared_between_tables(tmp_path: Path) -> None:
    first = reproduce("cross-head", tmp_path)
    assert (first.code, first.errors()) == (0, [])
    assert "cross-head: the paper's table 9" in first.out
    assert "G-total" in first.out
    second = reproduce("blocked", tmp_path, "--methods", "spg")
    assert "1 cells, 1 already there" in second.err
    assert "whole network" in second.out
    assert len(list(Store(tmp_path).runs())) == 1


def test_json_for_programs(tmp_path: Path) -> None:
    told = reproduce("ablation", tmp_path, "--methods", "spg,spg-no-chi", "--format", "json").json()
    assert told["name"] == "ablation"
    rows = told["tables"][0]["rows"]
    assert [row["method"] for row in rows] == ["SPG", "SPG (w/o CHI)"]


def test_counts_of_the_sequences_without_any_run() -> None:
    told = softmask("reproduce", "statistics", "--sequences", "D-5")
    assert told.code == 0
    assert "Statistics of the sequences" in told.out


@pytest.mark.slow
def test_what_is_measured_on_checkpoints(tmp_path: Path) -> None:
    pruned = reproduce("pruning", tmp_path)
    assert (pruned.code, pruned.errors()) == (0, [])
    assert "Highest 20%" in pruned.out
    # Its runs keep all checkpoints, so that the next table finds what it needs.
    shown = reproduce("representation", tmp_path, "--methods", "spg,ncl")
    assert (shown.code, shown.errors()) == (0, [])
    assert "Trends" in shown.out
    assert "already there" in shown.err
    curves = reproduce("forward-transfer-curves", tmp_path, "--methods", "spg")
    assert "not known: too few seeds" in curves.out


@pytest.mark.slow
def test_a_run_that_kept_no_checkpoints_is_told(tmp_path: Path) -> None:
    assert reproduce("cross-head", tmp_path).code == 0
    told = reproduce("pruning", tmp_path)
    assert told.code == 1
    assert "left out:" in told.err
    assert "checkpoint" in told.err
    assert "no data for `pruning`" in told.errors()[0]
