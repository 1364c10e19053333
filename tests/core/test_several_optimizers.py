"""Optimizers that are made of others, or that share the work: every parameter is scaled once, and only once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from softmask import SoftMask
from tests.core.examples import copied, same, small_backbone, small_batches


class Decaying(SGD):
    """Decays by itself after its parent's step, or before it: both classes have hooks around their `step`."""

    first = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.first:
            self.decay()
        super().step(closure)
        if not self.first:
            self.decay()

    @torch.no_grad()
    def decay(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.9)


class DecayingFirst(Decaying):
    first = True


class Raising(Decaying):
    fails = False

    def decay(self) -> None:
        if self.fails:
            raise RuntimeError("in the middle of a step")
        super().decay()


def with_importance(backbone: nn.Module, value: float) -> SoftMask:
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, value) for name, p in backbone.named_parameters()})
    return mask


def give_gradients(*modules: nn.Module) -> None:
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)


@pytest.fixture(autouse=True)
def plain_sgd_exists() -> None:
    SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # torch puts hooks around a class's step when it is first made


@pytest.mark.parametrize("kind", [Decaying, DecayingFirst])
def test_what_is_blocked_stays_though_one_step_is_made_of_two(kind: type[Optimizer]) -> None:
    backbone = small_backbone()
    mask, optimizer = with_importance(backbone, 1.0), kind(backbone.parameters(), lr=0.1)  # type: ignore[call-arg]
    before = copied(backbone)
    with mask.attach(optimizer):
        give_gradients(backbone)
        optimizer.step()
    assert same(copied(backbone), before)


@pytest.mark.parametrize("kind", [Decaying, DecayingFirst])
def test_the_whole_step_is_scaled_once(kind: type[Optimizer]) -> None:
    free, masked = small_backbone(), small_backbone()
    masked.load_state_dict(free.state_dict())
    before = copied(free)
    optimizers = [kind(backbone.parameters(), lr=0.1) for backbone in (free, masked)]  # type: ignore[call-arg]
    with with_importance(masked, 0.75).attach(optimizers[1]):
        for backbone, optimizer in zip((free, masked), optimizers, strict=True):
            give_gradients(backbone)
            optimizer.step()
    for name, stepped in copied(free).items():
        torch.testing.assert_close(copied(masked)[name], before[name] + 0.25 * (stepped - before[name]))


def test_gradients_are_scaled_once_too() -> None:
    backbone = small_backbone()
    with with_importance(backbone, 0.5).attach(Decaying(backbone.parameters(), lr=0.0), scale="gradient") as handle:
        give_gradients(backbone)
        handle.optimizer.step()
    assert all((parameter.grad == 0.5).all() for parameter in backbone.parameters())


def test_a_step_that_raised_does_not_stand_in_the_way_of_the_next() -> None:
    backbone = small_backbone()
    mask, optimizer = with_importance(backbone, 1.0), Raising(backbone.parameters(), lr=0.1)
    with mask.attach(optimizer):
        give_gradients(backbone)
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="in the middle") as kept:  # and with it the frames of the step
            optimizer.step()
        optimizer.fails = False
        with torch.no_grad():
            for parameter in backbone.parameters():
                parameter.fill_(3.0)  # what a user restores after an error is not pulled back
        optimizer.step()
    assert kept.value is not None
    assert all((parameter == 3.0).all() for parameter in backbone.parameters())


def test_each_of_two_optimizers_scales_its_own_gradients() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    first, second = SGD(backbone[0].parameters(), lr=0.1), SGD([*backbone[3].parameters(), *head.parameters()], lr=0.1)
    mask = with_importance(backbone, 0.5)
    with mask.attach(first, head), mask.attach(second, head):
        give_gradients(backbone, head)
        first.step()
        second.step()
    assert all((parameter.grad == 0.5).all() for parameter in (*backbone.parameters(), *head.parameters()))


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_head_with_an_optimizer_of_its_own(kind: type[Optimizer]) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = with_importance(backbone, 1.0)
    optimizers = [kind(module.parameters(), lr=0.1) for module in (backbone, head)]  # type: ignore[call-arg]
    before = copied(backbone) | copied(head)
    with mask.attach(optimizers[0], head), mask.attach(optimizers[1], head):
        x, y = small_batches()[0]
        F.cross_entropy(head(backbone(x)), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert same(copied(backbone) | copied(head), before), "the average importance is 1: the head may not move either"


class Around(Optimizer):
    """Decays, then lets another optimizer take the step."""

    def __init__(self, parameters: Any, inner: Optimizer) -> None:
        self.optimizer = inner
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.9)
        return self.optimizer.step(closure)


@pytest.mark.parametrize("importance", [0.0, 0.5, 1.0])
def test_what_an_outer_optimizer_adds_is_masked_too(importance: float) -> None:
    backbone = small_backbone()
    free, mask = copy.deepcopy(backbone), with_importance(backbone, importance)
    before = [p.detach().clone() for p in backbone.parameters()]
    for module in (backbone, free):
        optimizer = Around(module.parameters(), Adam(module.parameters()))
        give_gradients(module)
        if module is free:
            optimizer.step()
        else:
            with mask.attach(optimizer):
                optimizer.step()
    for was, masked, unmasked in zip(before, backbone.parameters(), free.parameters(), strict=True):
        torch.testing.assert_close(masked, was + (1 - importance) * (unmasked - was))
    if importance == 1:
        assert all(torch.equal(was, p) for was, p in zip(before, backbone.parameters(), strict=True))
