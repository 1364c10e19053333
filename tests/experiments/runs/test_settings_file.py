"""Settings files: written and read back, checked like a config, refused where they do not belong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import ConfigError
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.settings_file import (
    FoundSettings,
    read_settings,
    settings_changes,
    settings_path,
    write_settings,
)
from softmask.experiments.sequences import sequence_facts

FOUND = FoundSettings(
    method="ewc",
    sequence="D-5",
    settings={"strength": 12.5},
    network={"drop1": 0.1, "drop2": 0.25},
    training={"lr": 0.125},
    found={"trials": 3},
)


def written(path: Path, **changed: Any) -> Path:
    raw: dict[str, Any] = {"format": 1, "method": "ewc", "sequence": "D-5", "settings": {"strength": 12.5}}
    path.write_text(json.dumps({**raw, **changed}))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "ewc.json"
    write_settings(file, FOUND)
    assert read_settings(file) == FOUND


def test_a_config_takes_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "ewc.json"
    write_settings(file, FOUND)
    config = make_config("ewc", "D-5", preset="short", changes=settings_changes(file, "ewc", "D-5"))
    assert config.settings["strength"] == 12.5
    assert (config.network.drop1, config.network.drop2, config.training.lr) == (0.1, 0.25, 0.125)
    assert config.training.epochs == 10, "what the file does not name comes from the preset"


def test_a_folder_has_a_file_for_each_method_and_sequence(tmp_path: Path) -> None:
    write_settings(settings_path(tmp_path, "ewc", "D-5"), FOUND)
    assert (tmp_path / "D-5" / "ewc.json").exists()
    assert settings_changes(tmp_path, "ewc", "D-5") == FOUND.changes()
    with pytest.warns(UserWarning, match="the defaults are used for spg on D-5"):
        assert settings_changes(tmp_path, "spg", "D-5") == {}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"format": 2}, "settings file"),
        ({"method": 3}, "method: "),
        ({"method": "spg"}, "there is no field 'settings.strength'"),
        ({"settings": [1]}, "settings: "),
        ({"settings": {"strenght": 1.0}}, "did you mean 'settings.strength'"),
        ({"settings": {"strength": "much"}}, "strength"),
        ({"network": {"drop1": 1.5}}, "drop1 must lie in 0..1"),
        ({"seeds": {"order": 1}}, "there is no field 'seeds'"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    file = written(tmp_path / "ewc.json", **changed)
    with pytest.raises(ConfigError, match=told) as error:
        read_settings(file)
    assert str(file) in str(error.value)


def test_settings_of_another_method_or_sequence_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "ewc.json")
    with pytest.raises(ConfigError, match="for the method ewc, not for spg"):
        settings_changes(file, "spg", "D-5")
    with pytest.raises(ConfigError, match="for the sequence D-5, not for R-10"):
        settings_changes(file, "ewc", "R-10")


def test_a_missing_or_torn_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no settings file"):
        settings_changes(tmp_path / "none.json", "ewc", "D-5")
    (tmp_path / "torn.json").write_text('{"format": 1, "method"')
    with pytest.raises(ConfigError, match="cannot read"):
        settings_changes(tmp_path / "torn.json", "ewc", "D-5")


def test_the_authors_values_are_those_of_spg_and_nothing_else() -> None:
    facts = sequence_facts("C-10")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings_changes("paper", "spg", "C-10") == {"network.drop1": facts.drop1, "network.drop2": facts.drop2}
    with pytest.warns(UserWarning, match="published no settings for ewc"):
        settings_changes("paper", "ewc", "C-10")
    with pytest.raises(ConfigError, match="the paper has no sequence D-5"):
        settings_changes("paper", "spg", "D-5")
