"""`softmask search`: what it says, what it writes and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from softmask.experiments.runs.settings_file import read_settings
from tests.cli.command import Ended, softmask, tiny


def command(store: Path, *more: object) -> list[object]:
    options: list[object] = ["search", "--method", "spg", "--sequence", "D-5", "--preset", "short", "--tasks", 1]
    return [*options, "--set", "width=0.0625", "--set", "epochs=1", "--trials", 2, "--store", store, *more]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    folder = tmp_path_factory.mktemp("search")
    return folder, softmask(*command(folder / "store", "--out", folder / "spg.json"))


def test_it_says_the_best_the_defaults_and_where_the_file_is(found: tuple[Path, Ended]) -> None:
    folder, ended = found
    assert ended.code == 0
    kept = read_settings(folder / "spg.json")
    lines = ended.out.splitlines()
    assert lines[1].startswith(f"best      {kept.found['value']:6.2f}   trial {kept.found['trial']}: ")
    assert f"trial {kept.found['trial']}: complete {kept.found['value']:.2f}" in ended.err
    assert lines[2].startswith(f"defaults  {kept.found['defaults']:6.2f}")
    assert ("no trial was better" in lines[2]) == (kept.found["value"] == kept.found["defaults"])
    assert str(folder / "spg.json") in lines[-1]
    assert "trial 2: complete" in ended.err


def test_the_history_is_a_figure(found: tuple[Path, Ended]) -> None:
    folder, _ = found
    assert "<svg" in (folder / "spg.svg").read_text()


def test_again_it_has_nothing_to_do_and_tells_the_same(found: tuple[Path, Ended]) -> None:
    folder, ended = found
    again = softmask(*command(folder / "store", "--out", folder / "spg.json", "--json"))
    assert again.err == ""
    told = again.json()
    assert [trial["number"] for trial in told["trials"]] == [1, 2]
    assert f"{told['found']['value']:6.2f}" in ended.out


def test_run_takes_what_was_found(found: tuple[Path, Ended], tmp_path: Path) -> None:
    folder, _ = found
    done = softmask(*tiny("spg", "--settings", folder / "spg.json", "--store", tmp_path, "--json")).json()
    kept = read_settings(folder / "spg.json")
    assert {name: done["config"]["network"][name] for name in ("drop1", "drop2")} == kept.network


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--method", "spgg"], "did you mean 'spg'"),
        (["--method", "one", "--no-dropout"], "nothing to search for one"),
        (["--set", "wdith=1"], "there is no field 'wdith'"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_written(tmp_path: Path, options: list[str], told: str) -> None:
    ended = softmask(*command(tmp_path / "store", *options))
    assert ended.code == 2
    assert told in ended.errors()[0]
    assert not (tmp_path / "store").exists()


def test_a_figure_of_unknown_kind_is_refused_first(tmp_path: Path) -> None:
    ended = softmask(*command(tmp_path / "store", "--figure", tmp_path / "history.txt"))
    assert ended.code == 1
    assert "history.txt" in ended.errors()[0]
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_several_processes_share_the_trials(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ended = softmask(*command(tmp_path, "--trials", 5, "--jobs", 2, "--json"))
    assert ended.code == 0
    assert [trial["state"] for trial in ended.json()["trials"]] == ["complete"] * 5
    # The workers are other processes: what they tell goes past the test's own standard error.
    assert sorted(line.split(":")[0] for line in capfd.readouterr().err.splitlines()) == [
        f"trial {number}" for number in range(1, 6)
    ]
