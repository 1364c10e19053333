"""`softmask run`: what it says, what it writes and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from softmask.experiments.metrics import FORMULAS
from softmask.experiments.runs.settings_file import FoundSettings, write_settings
from softmask.experiments.runs.store import Store
from tests.cli.command import Ended, softmask, tiny
from tests.experiments.runs.examples import tiny_config

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


SAME_PRECISION = (["--precision", "bf16"], ["--set", "training.precision=bf16"])


def test_results_go_to_standard_output_and_progress_elsewhere(alone: Ended, store: Path) -> None:
    assert alone.code == 0
    *measures, results = alone.out.splitlines()
    assert [line.split()[0] for line in measures] == ["ACC", "BWT", "ACC"]
    assert results.startswith(f"results: {store}")
    assert "task 2/2 epoch 2" in alone.err


def test_formulas_keep_their_square_brackets(alone: Ended) -> None:
    assert FORMULAS["ACC"] in alone.out
    assert "a[T][j]" in alone.out


def test_without_a_terminal_there_are_plain_lines_only(alone: Ended) -> None:
    assert not CONTROL.search(alone.out + alone.err)
    assert all(line.startswith(("spg on D-5: task", "FWT needs")) for line in alone.err.splitlines())


def test_without_the_reference_the_run_says_what_to_do(alone: Ended) -> None:
    assert "FWT" not in alone.out
    assert "FWT needs ONE on the same tasks: add --with-one" in alone.err


def test_with_the_reference_there_is_forward_transfer(with_one: Ended) -> None:
    assert with_one.code == 0
    assert [line.split()[0] for line in with_one.out.splitlines()[:-1]] == ["ACC", "FWT", "BWT", "ACC"]
    assert "--with-one" not in with_one.err
    assert "one on D-5: task 2/2" in with_one.err


def test_a_finished_run_is_not_run_again(with_one: Ended, store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    again = softmask(*tiny("spg", "--store", store))
    assert again.code == 0
    assert again.err.splitlines() == ["spg on D-5: already finished, nothing to do"]
    assert again.out == with_one.out
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


def test_json_for_programs(with_one: Ended, store: Path) -> None:
    told = softmask(*tiny("spg", "--store", store, "--json")).json()
    assert set(told) == {"path", "config", "ACC", "FWT", "BWT", "ACC (no id)"}
    assert all(isinstance(told[name], float) for name in FORMULAS)
    assert told["config"]["training"]["epochs"] == 2


def test_the_reference_has_neither_transfer_nor_advice(with_one: Ended, store: Path) -> None:
    reference = softmask(*tiny("one", "--store", store))
    assert [line.split()[0] for line in reference.out.splitlines()[:-1]] == ["ACC", "ACC"]
    assert "--with-one" not in reference.err


def test_joint_training_has_neither_transfer_nor_advice(tmp_path: Path) -> None:
    joint = softmask(*tiny("mtl", "--store", tmp_path, "--set", "joint_epochs=1"))
    assert [line.split()[0] for line in joint.out.splitlines()[:-1]] == ["ACC", "ACC"]
    assert "--with-one" not in joint.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_dry_run_tells_the_cost_and_writes_nothing(tmp_path: Path, form: list[str]) -> None:
    told = softmask(*tiny("spg", "--store", tmp_path / "store", "--dry-run", *form))
    assert told.code == 0
    assert not list(tmp_path.iterdir())
    if form:
        assert {"id", "steps", "seconds", "memory_bytes", "disk_bytes", "note"} <= set(told.json())
        assert told.json()["steps"] > 0
    else:
        assert [line.split()[0] for line in told.out.splitlines()[1:5]] == ["steps", "time", "memory", "disk"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "spgg"], "unknown method 'spgg': did you mean 'spg'?"),
        (["--method", "mine.py"], "docs/adding-a-method.md"),
        (["--sequence", "D5"], "unknown sequence 'D5': did you mean 'D-5'?"),
        (["--preset", "papr"], "unknown preset 'papr': did you mean 'paper'?"),
        (["--tasks", "9"], "D-5 has 5 tasks"),
        (["--set", "widht=1"], "there is no field 'widht': did you mean 'width'?"),
        (["--set", "width=wide"], "network.width: Input should be a valid number, not 'wide'"),
        (["--set", "width=9"], "width must lie above 0 and up to 8, not 9"),
        (["--set", "seeds.order=-1"], "seeds.order: a seed must be 0 or more, not -1"),
        (["--set", "lr=Infinity"], "finite numbers"),
        (["--device", "gpu"], "there is no device 'gpu'; devices are called auto, cpu, cuda"),
        (["--precision", "bf17"], "training.precision: Input should be 'fp32' or 'bf16', not 'bf17'"),
        (["--set", "width"], "--set takes name=value, not 'width'"),
        (["--set", "=3"], "--set takes name=value, not '=3'"),
    ],
)
def test_a_wrong_config_is_told_in_one_line_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    ended = softmask(*tiny("spg", "--store", tmp_path / "store", *arguments))
    assert ended.code == 2
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1
    assert ended.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--method", "spg"],
        tiny("spg", "--keep", "some"),
        tiny("spg", "--seed", -1),
        tiny("spg", "--tasks", 0),
        tiny("spg", "--threads", 0),
        tiny("spg", "--no-such-option"),
        ["rnu"],
        ["list", "methosd"],
        ["analyse", "accuracy", "--format", "pdf"],
    ],
)
def test_wrong_usage_ends_with_two(arguments: list[object]) -> None:
    ended = softmask(*arguments)
    assert ended.code == 2
    assert ended.err
    assert "Traceback" not in ended.err


def test_a_run_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()):
        ended = softmask(*tiny("spg", "--store", tmp_path))
    assert ended.code == 1
    assert len(ended.errors()) == 1
    assert "is being written by process" in ended.err


def test_notes_about_damage_are_lines_not_warnings_of_python(tmp_path: Path) -> None:
    with Store(tmp_path).open(tiny_config()) as writer:
        (writer.path / "progress.safetensors").write_bytes(b"garbage")
    ended = softmask(*tiny("spg", "--store", tmp_path))
    assert ended.code == 0
    (note,) = [line for line in ended.err.splitlines() if line.startswith("note: ")]
    assert "progress.safetensors" in note
    assert "UserWarning" not in ended.err


def test_the_precision_is_part_of_what_decides_a_result(tmp_path: Path) -> None:
    options = ["--store", tmp_path, "--json", "--dry-run"]
    short, long = (softmask(*tiny("spg", *options, *way)).json()["id"] for way in SAME_PRECISION)
    assert short == long != softmask(*tiny("spg", *options)).json()["id"]


def test_settings_from_a_file_and_a_change_by_hand_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "spg.json"
    found = FoundSettings(method="spg", sequence="D-5", network={"drop1": 0.05, "drop2": 0.25})
    write_settings(file, found)
    options = ["--settings", file, "--store", tmp_path / "store", "--set", "drop2=0.3", "--json"]
    network = softmask(*tiny("spg", *options)).json()["config"]["network"]
    assert (network["drop1"], network["drop2"]) == (0.05, 0.3)
    refused = softmask(*tiny("ewc", *options))
    assert refused.code == 2
    assert "holds settings for the method spg, not for ewc" in refused.errors()[0]
