"""What the methods with penalties, a memory or a rate of their own have in common: settings that cannot be."""

import pytest

from softmask.runs.config import ConfigError, make_config


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("ewc", {"strength": -1.0}, "strength must not be negative: -1.0"),
        ("ewc", {"fisher_batch": 0}, "fisher_batch must be above 0"),
        ("ewc-gi", {"strength": -1.0}, "strength must not be negative"),
        ("si", {"strength": -1.0}, "strength must not be negative"),
        ("si", {"damping": 0.0}, "damping must be above 0"),
        ("ucl", {"alpha": -1.0}, "alpha must not be negative"),
        ("ucl", {"beta": -1.0}, "beta must not be negative"),
        ("ucl", {"rho_rate": 0.0}, "rho_rate must be above 0"),
        ("ucl", {"settings.lr": 0.0}, "lr must be above 0"),
        ("a-gem", {"per_class": -1}, "per_class must not be negative"),
        ("a-gem", {"reference_batch": 0}, "reference_batch must be above 0"),
        ("tag", {"contrast": -1.0}, "contrast must not be negative"),
        ("tag", {"settings.lr": 0.0}, "lr must be above 0"),
        *((name, {"settings.lr": 0.0}, "lr must be above 0") for name in ("mtl", "ncl", "ewc", "ewc-gi", "si")),
        ("a-gem", {"settings.lr": 0.0}, "lr must be above 0"),
        ("spg-fi", {"fisher_batch": 0}, "fisher_batch must be above 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_a_run(name: str, wrong: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config(name, "D-5", preset="short", changes=wrong)
