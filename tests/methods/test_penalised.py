"""Invalid settings of the methods with penalties, a replay buffer or a learning rate of their own."""

from typing import Any

import pytest
import torch

from softmask.experiments.runs.config import ConfigError, make_config
from softmask.experiments.runs.search_space import SearchPlan
from softmask.learning.fit import Fit
from softmask.learning.method import Method
from softmask.learning.registry import METHODS
from softmask.learning.training import Training
from softmask.methods.a_gem import AGEM
from softmask.methods.mtl import MTL
from softmask.methods.ncl import NCL
from softmask.methods.one import ONE
from softmask.methods.si import SI
from softmask.methods.tag import TAG
from softmask.methods.ucl import UCL
from tests.learning.toys import random_scenario, random_task


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("ewc", {"strength": -1.0}, r"\bstrength\b"),
        ("ewc", {"fisher_batch": 0}, r"\bfisher_batch\b"),
        ("ewc-gi", {"strength": -1.0}, r"\bstrength\b"),
        ("si", {"strength": -1.0}, r"\bstrength\b"),
        ("si", {"damping": 0.0}, r"\bdamping\b"),
        ("ucl", {"alpha": -1.0}, r"\balpha\b"),
        ("ucl", {"beta": -1.0}, r"\bbeta\b"),
        ("ucl", {"rho_rate": 0.0}, r"\brho_rate\b"),
        ("ucl", {"settings.lr": 0.0}, r"\blr\b"),
        ("a-gem", {"per_class": -1}, r"\bper_class\b"),
        ("a-gem", {"reference_batch": 0}, r"\breference_batch\b"),
        ("tag", {"contrast": -1.0}, r"\bcontrast\b"),
        ("tag", {"settings.lr": 0.0}, r"\blr\b"),
        *((name, {"settings.lr": 0.0}, r"\blr\b") for name in ("mtl", "ncl", "ewc", "ewc-gi", "si")),
        ("a-gem", {"settings.lr": 0.0}, r"\blr\b"),
        ("spg-fi", {"fisher_batch": 0}, r"\bfisher_batch\b"),
        *(("spg-hard", {"threshold": wrong}, r"\bthreshold\b") for wrong in (-0.1, 1.1)),
        ("lwf", {"strength": -1.0}, r"\bstrength\b"),
        ("lwf", {"temperature": 0.0}, r"\btemperature\b"),
        ("gpm", {"threshold": 1.1}, r"\bthreshold\b"),
        ("gpm", {"rise": -0.1}, r"\brise\b"),
        ("gpm", {"images": 0}, r"\bimages\b"),
        ("sgp", {"threshold": -0.1}, r"\bthreshold\b"),
        ("sgp", {"alpha": 0.0}, r"\balpha\b"),
        ("mas", {"strength": -1.0}, r"\bstrength\b"),
        ("er", {"budget": -1}, r"\bbudget\b"),
        ("er", {"replay_batch": 0}, r"\breplay_batch\b"),
        ("der-plus", {"alpha": -1.0}, r"\balpha\b"),
        ("der-plus", {"beta": -1.0}, r"\bbeta\b"),
        ("mir", {"candidates": 63}, r"\bcandidates\b"),
        ("gem", {"per_class": -1}, r"\bper_class\b"),
        ("icarl", {"budget": -1}, r"\bbudget\b"),
        ("icarl", {"temperature": 0.0}, r"\btemperature\b"),
        ("mer", {"beta": 0.0}, r"\bbeta\b"),
        ("mer", {"gamma": 1.5}, r"\bgamma\b"),
        ("mer", {"replay_steps": 0}, r"\breplay_steps\b"),
        ("gr", {"strength": -1.0}, r"\bstrength\b"),
        ("gr", {"generator_epochs": 0}, r"\bgenerator_epochs\b"),
        ("gr", {"latent": 0}, r"\blatent\b"),
        ("gem", {"margin": -0.5}, r"\bmargin\b"),
        ("binplay", {"samples": -1}, r"\bsamples\b"),
        ("binplay", {"bits": 0}, r"\bbits\b"),
        ("dmc", {"auxiliary": 5}, r"\bauxiliary\b"),
        ("dmc", {"consolidation_rate": 0.0}, r"\bconsolidation_rate\b"),
        ("trgp", {"relation": 1.5}, r"\brelation\b"),
        ("trgp", {"regions": 0}, r"\bregions\b"),
        ("spg-plus", {"answers": -1.0}, r"\banswers\b"),
        ("spg-plus", {"mask": 1.5}, r"\bmask\b"),
        ("spg-plus", {"settings.lr": 0.0}, r"\blr\b"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_a_run(name: str, wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(name, "D-5", preset="short", changes=wrong)


@pytest.mark.parametrize("kind", [SI, UCL])
def test_the_largest_rate_of_the_penalty_is_kept_with_the_run(kind: type[Method]) -> None:
    method, task = kind(random_scenario(tasks=1)), random_task()
    method.begin_task(task)
    Fit(method, task, Training(lr=0.01, lr_min=0.01))
    assert method.end_task(task) == method.stability.facts()
    assert set(method.stability.facts()) == {"penalty_rate_largest", "penalty_rate_above_2"}


@pytest.mark.parametrize("kind", [NCL, ONE, MTL, SI, AGEM, TAG])
def test_who_is_not_clipped(kind: type[Method]) -> None:
    method = kind(random_scenario(tasks=2))
    for parameter in method.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    method.clip_gradients()
    assert all((parameter.grad == 1e6).all() for parameter in method.parameters())


RATE = (5e-3, 0.5)


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("ewc", {"strength": (1.0, 1e5), "lr": RATE}),
        ("ewc-gi", {"strength": (1e-4, 8.0), "lr": RATE}),
        ("si", {"strength": (1e-3, 10.0), "damping": (1e-3, 1e-2, 1e-1), "lr": RATE}),
        (
            "ucl",
            {
                "alpha": (0.01, 10.0),
                "beta": (1e-5, 0.1),
                "noise_share": (0.125, 0.25, 0.5),
                "rho_rate": (0.1, 10.0),
                "lr": (0.01, 0.25),
            },
        ),
        ("tag", {"contrast": (1.0, 7.0), "lr": (1e-5, 5e-3)}),
        ("mtl", {"lr": (0.05, 0.5)}),
        ("spg-hard", {"threshold": (0.2, 0.4, 0.6, 0.8)}),
    ],
)
def test_ranges_of_searches(name: str, ranges: dict[str, Any]) -> None:
    """They hold what the methods' authors use; a range for another rate or optimizer would fail in every trial."""
    space = SearchPlan(method=name, sequence="D-5", trials=1, dropout=False).space()
    found = {key.removeprefix("settings."): tuple(each.choices or (each.low, each.high)) for key, each in space.items()}
    assert found == ranges


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("si", {"strength": 0.1, "damping": 0.1, "penalty_in_validation": True}),
        ("ucl", {"alpha": 5.0, "beta": 0.002, "noise_share": 0.125, "rho_rate": 1.0, "optimizer": "sgd"}),
        ("tag", {"contrast": 5.0, "lr": 2.5e-4}),
    ],
)
def test_defaults_are_the_authors(name: str, defaults: dict[str, Any]) -> None:
    settings = METHODS.load(name).Settings()
    assert {key: getattr(settings, key) for key in defaults} == defaults
