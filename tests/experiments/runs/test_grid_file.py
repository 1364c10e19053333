"""A grid as a file: what it may say, and what is said when it says something else."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import ConfigError
from softmask.experiments.analyses.grouping import training_name
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.grid_file import GridFile, parse_seeds, read_grid_file
from softmask.experiments.runs.store import Store

ROOT = Path(__file__).parents[3]

TOML = """
methods = ["spg", "spg-hard"]
sequences = ["D-5"]
seeds = "1-3,7"
preset = "short"
tasks = 2
[set]
epochs = 3
network.width = 0.5
"network.drop1" = 0.1
[method.spg-hard]
settings.threshold = 0.5
"""
YAML = """
methods: [spg, spg-hard]
sequences: [D-5]
seeds: [1, 2, 3, 7]
preset: short
tasks: 2
set: {epochs: 3, network: {width: 0.5}, network.drop1: 0.1}
method: {spg-hard: {settings: {threshold: 0.5}}}
"""
MEANT = GridFile(
    methods=["spg", "spg-hard"],
    sequences=["D-5"],
    seeds=[1, 2, 3, 7],
    preset="short",
    tasks=2,
    set={"epochs": 3, "network.width": 0.5, "network.drop1": 0.1},
    method={"spg-hard": {"settings.threshold": 0.5}},
)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    assert read_grid_file(written(tmp_path, "grid.toml", TOML)) == MEANT
    assert read_grid_file(written(tmp_path, "grid.yaml", YAML)) == MEANT


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert read_grid_file(written(tmp_path, "grid.toml", "")) == GridFile()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("grid.toml", 'method = ["spg"]', "method: "),
        ("grid.toml", 'metods = ["spg"]', "no field 'metods': did you mean 'methods'"),
        ("grid.toml", 'methods = "spg"', "methods: "),
        ("grid.toml", "seeds = [1.5]", "seeds.0: "),
        ("grid.toml", 'seeds = "a"', "seeds are given as in 1-5"),
        ("grid.toml", "tasks = true", "tasks: "),
        ("grid.toml", "methods = [", "is not valid TOML"),
        ("grid.yaml", "methods: [", "is not valid YAML"),
        ("grid.yaml", "- spg", "expected fields"),
        ("grid.yaml", "methods: [&name spg, *name]", "aliases"),
        ("grid.yaml", "set: " + 30 * "[" + 30 * "]", "nested too deeply"),
        ("grid.json", "{}", "ends in .toml"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"grid\.|seeds") as caught:
        read_grid_file(written(tmp_path, name, text))
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pyyaml_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return usual(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"softmask\[yaml\]"):
        read_grid_file(written(tmp_path, "grid.yml", YAML))


@pytest.mark.parametrize(("text", "meant"), [("3", [3]), ("1-3", [1, 2, 3]), ("0, 5-6", [0, 5, 6])])
def test_seeds(text: str, meant: list[int]) -> None:
    assert parse_seeds(text) == meant


@pytest.mark.parametrize("text", ["", "-1", "1-", "3-1", "1;2", "x"])
def test_no_seeds(text: str) -> None:
    with pytest.raises(ConfigError, match="seeds are given as in"):
        parse_seeds(text)


def test_a_date_is_no_range_of_seeds() -> None:
    with pytest.raises(ConfigError, match="more than 10,000 seeds"):
        parse_seeds("1,2-20261118")


def test_the_committed_runs_of_preset_compare_are_cells_of_its_grid() -> None:
    file = read_grid_file(ROOT / "settings" / "compare.toml")
    assert file.methods is not None
    cells = {
        make_config(
            method, "C-10", preset=file.preset, seed=seed, changes={**file.set, **file.method.get(method, {})}
        ).id()
        for method in file.methods
        for seed in (1, 2, 3)
    }
    committed = {
        run.config.id()
        for run in Store(ROOT / "results").runs()
        if training_name(run.config.training) == "compare precision=bf16" and run.config.sequence == "C-10"
    }
    assert committed
    assert committed <= cells
