"""The search space: declared ranges and dropout rates, without fixed settings, beginning with the defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from softmask.errors import ConfigError
from softmask.experiments.runs.config import default_dropout
from softmask.experiments.runs.search_space import SearchPlan
from softmask.learning.registry import METHODS
from softmask.learning.settings import search


def plan(method: str = "ewc", **changed: Any) -> SearchPlan:
    return SearchPlan(**{"method": method, "sequence": "D-5", "trials": 20, "preset": "short", **changed})


def test_the_space_is_what_the_settings_declare_and_dropout() -> None:
    space = plan("ewc").space()
    assert list(space) == ["network.drop1", "network.drop2", "settings.strength", "settings.lr"]
    assert (space["settings.strength"].low, space["settings.strength"].high) == (1.0, 1e5)
    assert space["settings.strength"].log
    assert list(plan("ewc", dropout=False).space()) == ["settings.strength", "settings.lr"]


def test_what_is_fixed_is_not_searched() -> None:
    fixed = plan("ewc", changes={"network.drop1": 0.1, "strength": 3.0, "settings.lr": 0.05})
    assert list(fixed.space()) == ["network.drop2"]
    config = fixed.config({"network.drop2": 0.2})
    assert (config.network.drop1, config.network.drop2, config.settings["strength"]) == (0.1, 0.2, 3.0)


def test_the_rate_of_the_training_does_not_fix_the_methods_own() -> None:
    assert "settings.lr" in plan("pgn", changes={"training.lr": 0.1}).space()
    assert "settings.lr" not in plan("pgn", changes={"settings.lr": 0.1}).space()


def test_nothing_to_search_is_told() -> None:
    with pytest.raises(ConfigError, match="nothing to search for one"):
        plan("one", dropout=False).space()


@pytest.mark.parametrize("method", METHODS.names())
def test_the_first_trial_is_a_run_with_the_defaults(method: str) -> None:
    given = plan(method)
    first = given.first()[0]
    tried, usual = given.config(first), given.config({})
    assert (tried.network.drop1, tried.network.drop2) == default_dropout(method, "D-5")
    if usual.settings.get("lr", 0) is None:  # stands for the rate of the training
        usual = dataclasses.replace(usual, settings={**usual.settings, "lr": usual.training.lr})
    assert tried == usual


def test_what_was_fixed_goes_with_what_is_found() -> None:
    changes = {"settings.damping": 0.01, "drop1": 0.1, "training.lr": 0.1, "width": 0.5}
    assert plan("si", changes=changes).fixed() == {
        "settings": {"damping": 0.01},
        "network": {"drop1": 0.1},
        "training": {"lr": 0.1},
    }
    fixed = plan("mtl", changes={"training.lr": 0.1, "batch": 16, "epochs": 1, "width": 0.25}).fixed()
    assert fixed == {"settings": {}, "network": {}, "training": {"lr": 0.1, "batch": 16}}


def test_few_values_are_all_tried_and_none_twice() -> None:
    hard = plan("spg-hard", dropout=False)
    assert sorted(found["settings.threshold"] for found in hard.first()) == [0.2, 0.4, 0.6, 0.8]
    assert hard.first()[0] == hard.defaults()
    assert hard.total() == 4
    assert dataclasses.replace(hard, trials=3).first() == hard.first()[:3], "more trials go on with the others"
    assert plan("spg-hard").total() == 20


def test_only_more_trials_keep_the_name() -> None:
    name = plan().name()
    assert plan(trials=50).name() == name
    for changed in ({"seed": 2}, {"tasks": 2}, {"dropout": False}, {"preset": "paper"}, {"changes": {"width": 0.5}}):
        assert plan(**changed).name() != name


def test_a_whole_number_is_searched_among_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However its ends are written: 9.947 would be refused in the trial that draws it, again and again."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        neighbours: int = search(5, low=1.5, high=10.0)

    monkeypatch.setattr(METHODS.load("ncl"), "Settings", Settings)
    allowed = plan("ncl", dropout=False).space()["settings.neighbours"]
    assert (allowed.low, allowed.high, allowed.whole) == (2, 10, True)
    assert allowed.whole
