"""The content of a snapshot of a method, and how it is restored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from softmask.learning import METHODS, BackboneMismatch, Scenario
from softmask.learning.method import Method, sgd_with_two_rates
from softmask.learning.networks import resnet18
from softmask.learning.settings import search, settings_card
from softmask.methods.ncl import NCL
from tests.learning.toys import random_scenario
from tests.methods.comparing import built
from tests.methods.isolation import made


def test_a_snapshot_brings_back_what_was_frozen_meanwhile() -> None:
    method = Method(random_scenario(2))
    snapshot = method.snapshot()
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.zero_()
    method.backbone.requires_grad_(False)
    method.restore(snapshot)
    assert all(torch.equal(parameter, snapshot[name]) for name, parameter in method.named_parameters())


def test_what_is_frozen_is_part_of_a_snapshot_unless_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method(random_scenario(2))
    method.backbone[0].weight.requires_grad_(False)
    assert set(method.snapshot()) == set(method.state_dict())
    monkeypatch.setattr(Method, "not_in_snapshot", ("backbone",))
    assert set(method.state_dict()) - set(method.snapshot()) == {"backbone.0.weight"}


@pytest.mark.parametrize("name", ["one", "pgn", "pathnet", "supsup"])
def test_networks_of_other_tasks_are_not_copied_in_every_epoch(name: str) -> None:
    """On I-100 they take gigabytes."""
    method, tasks = built(name)
    for task in tasks:  # PathNet's first has no modules to keep
        method.begin_task(task)
        if name == "pathnet":
            method.paths[task.id] = 0
    frozen = {key for key, p in method.named_parameters() if not p.requires_grad and not key.startswith("heads")}
    assert frozen
    assert frozen.isdisjoint(method.snapshot())


@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"low": 1.0},
        {"low": 1.0, "high": 1.0},
        {"low": 0.0, "high": 1.0, "log": True},
        {"choices": ()},
        {"choices": ((1, 2), (3, 4))},
        {"choices": (1, 2), "low": 0.0, "high": 1.0},
    ],
)
def test_a_range_that_nobody_can_search_is_refused_where_it_stands(declared: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="search: "):
        search(1.0, **declared)


def test_what_is_never_trained_is_not_counted_as_learned() -> None:
    class Teacher(Method):
        def build(self) -> None:
            super().build()
            self.teacher = self.scenario.backbone().requires_grad_(False)

    scenario = built("ncl")[0].scenario
    assert Teacher.learnable(scenario) == Method.learnable(scenario)


def test_those_apart_have_their_own_rate_and_frozen_ones_none() -> None:
    method = made(NCL)
    method.heads[1].requires_grad_(False)
    apart = [*method.heads[0].parameters(), *method.heads[1].parameters()]
    optimizer = sgd_with_two_rates(method, apart, 0.5, 0.1)
    first, second = optimizer.param_groups
    assert (first["lr"], second["lr"]) == (0.5, 0.05)
    assert [p.shape for p in second["params"]] == [p.shape for p in method.heads[0].parameters()]
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in method.parameters() if p.requires_grad}


@pytest.mark.parametrize("name", ["hat", "cat", "pathnet", "pgn", "ucl"])
def test_a_backbone_that_does_not_fit_is_told_in_a_sentence(name: str) -> None:
    @dataclass(frozen=True)
    class WithResNet(Scenario):
        def backbone(self, scale: float = 1.0):
            return resnet18(self.input_shape, width=1 / 16)

    method = METHODS.load(name)
    with pytest.raises(BackboneMismatch, match=method.title):
        method(WithResNet((3, 32, 32), (2, 2)), method.Settings(**({"expansion": 1.0} if name == "pgn" else {})))


def test_a_backbone_without_widths_is_told() -> None:
    @dataclass(frozen=True)
    class WithLinear(Scenario):
        def backbone(self, scale: float = 1.0):
            return nn.Linear(4, 4)

    with pytest.raises(BackboneMismatch, match="widths"):
        Method(WithLinear((1, 2, 2), (2,)))


def test_every_default_has_its_source() -> None:
    for name in METHODS.names():
        method = METHODS.load(name)
        assert method.dropout_source
        for setting in settings_card(method.Settings):
            assert "Default:" in setting.about, f"{name}: {setting.name}"
