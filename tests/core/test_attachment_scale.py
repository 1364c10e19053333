"""Which form of a mask, on gradients or on updates, protects under which optimizer, and what `auto` picks."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from softmask import SoftMask
from tests.core.examples import copied, everything, half_blocked, same, small_backbone, small_batches, train

# ---------------------------------------------------------------------------------------------- why updates are scaled

FORMS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=0.05),
    "SGD with decay": lambda p: SGD(p, lr=0.05, weight_decay=0.1),
    "RMSprop": lambda p: RMSprop(p, lr=0.01),
    "Adam": lambda p: Adam(p, lr=0.01),
}


def distance(make: Callable[[Any], Optimizer], scale: str | None, importance: float = 0.99, steps: int = 50) -> float:
    """How far the backbone moves in one training that always starts alike."""
    torch.manual_seed(3)
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, importance) for name, p in backbone.named_parameters()})
    optimizer, before = make([*backbone.parameters(), *head.parameters()]), copied(backbone)
    handle = mask.attach(optimizer, scale=scale) if scale else None
    train(backbone, head, optimizer, small_batches(), steps)
    if handle:
        handle.remove()
    return math.sqrt(sum(((after - before[name]) ** 2).sum().item() for name, after in copied(backbone).items()))


@pytest.mark.parametrize("name", FORMS)
def test_which_form_protects(name: str) -> None:
    """Adaptive optimizers divide a constant factor out again, decay goes around it; scaled updates always protect."""
    free, gradient, update, auto = (distance(FORMS[name], scale) for scale in (None, "gradient", "update", "auto"))
    assert update < 0.1 * free
    if name == "SGD":
        assert gradient == pytest.approx(update, rel=1e-3)
        assert auto == gradient
    else:
        assert gradient > 2 * update
        assert auto == update
    if name in ("Adam", "RMSprop"):
        assert gradient > 0.95 * free


def test_under_adam_the_gradient_form_changes_next_to_nothing() -> None:
    free, gradient = (distance(FORMS["Adam"], scale, importance=0.9, steps=5) for scale in (None, "gradient"))
    assert gradient == pytest.approx(free, rel=0.01)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"maximize": True}])
def test_both_forms_agree_under_plain_sgd(options: dict[str, Any]) -> None:
    results = []
    for scale in ("gradient", "update", "auto"):
        torch.manual_seed(3)
        backbone, head = small_backbone(), nn.Linear(6, 3)
        mask = SoftMask(backbone)
        mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
        optimizer = SGD([*backbone.parameters(), *head.parameters()], lr=0.05, **options)
        with mask.attach(optimizer, head, scale):
            train(backbone, head, optimizer, small_batches(), steps=8)
        results.append({**copied(backbone), **{f"head.{k}": v for k, v in copied(head).items()}})
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-6, atol=1e-6)
    assert same(results[1 if options.get("momentum") else 0], results[2])


def test_the_update_form_is_exact() -> None:
    """new = old + (1 - importance) * (stepped - old), for the backbone; with the mean for the head."""
    backbone, head = small_backbone(), nn.Linear(6, 3)
    free, free_head = copy.deepcopy(backbone), copy.deepcopy(head)
    mask = SoftMask(backbone)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    before, before_head = copied(backbone), copied(head)
    for b, h, masked in ((backbone, head, True), (free, free_head, False)):
        optimizer = Adam([*b.parameters(), *h.parameters()], lr=0.05)
        handle = mask.attach(optimizer, h) if masked else None
        train(b, h, optimizer, small_batches(), steps=1)
        if handle:
            handle.remove()
    for name, stepped in copied(free).items():
        expected = before[name] + (1 - mask.importance[name]) * (stepped - before[name])
        torch.testing.assert_close(backbone.state_dict()[name], expected, rtol=1e-6, atol=1e-7)
    for name, stepped in copied(free_head).items():
        expected = before_head[name] + (1 - mask.mean()) * (stepped - before_head[name])
        torch.testing.assert_close(head.state_dict()[name], expected, rtol=1e-6, atol=1e-7)


# ---------------------------------------------------------------------------------------------- what auto picks


def picks_gradient(backbone: nn.Module, optimizer: Optimizer) -> bool:
    """The gradient form is the one that changes `.grad`."""
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    scaled = [not torch.equal(p.grad, torch.ones_like(p)) for p in backbone.parameters()]
    assert all(scaled) or not any(scaled)
    return all(scaled)


class OwnSGD(SGD):
    """Might do anything."""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda p: SGD(p, lr=0.1), True),
        (lambda p: SGD(p, lr=0.1, momentum=0.9), False),
        (lambda p: SGD(p, lr=0.1, weight_decay=0.01), False),
        (lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01), False),
        (lambda p: SGD([{"params": p[1:]}, {"params": p[:1], "weight_decay": 0.1}], lr=0.1), False),
        (lambda p: OwnSGD(p, lr=0.1), False),
        (lambda p: Adam(p), False),
        (lambda p: AdamW(p), False),
        (lambda p: RMSprop(p), False),
    ],
)
def test_auto_takes_the_gradient_form_only_where_both_are_equal(
    make: Callable[[Any], Optimizer], expected: bool
) -> None:
    backbone = small_backbone()
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    optimizer = make(list(backbone.parameters()))
    with mask.attach(optimizer):
        assert picks_gradient(backbone, optimizer) is expected
        assert picks_gradient(backbone, optimizer) is expected


def test_decay_that_is_switched_on_later_is_noticed() -> None:
    backbone = small_backbone()
    mask, _ = half_blocked(backbone)
    mask.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
    optimizer = SGD(backbone.parameters(), lr=0.1)
    with mask.attach(optimizer):
        assert picks_gradient(backbone, optimizer)
        optimizer.param_groups[0]["weight_decay"] = 0.1
        assert not picks_gradient(backbone, optimizer)


def _with_momentum() -> tuple[nn.Module, nn.Module, SGD, SoftMask]:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    optimizer = SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    return backbone, head, optimizer, SoftMask(backbone)


@pytest.mark.parametrize(("scale", "protects"), [("auto", True), ("update", True), ("gradient", False)])
def test_momentum_from_before_cannot_move_what_is_blocked(scale: str, protects: bool) -> None:
    backbone, head, optimizer, mask = _with_momentum()
    train(backbone, head, optimizer, small_batches(), steps=3)
    mask.update(everything(backbone))
    before = copied(backbone)
    with mask.attach(optimizer, scale=scale):
        train(backbone, head, optimizer, small_batches(), steps=3)
    assert same(copied(backbone), before) is protects


@pytest.mark.parametrize("how", ["update", "in place", "replaced", "loaded", "threshold"])
def test_importance_that_changes_in_the_middle_of_an_attachment(how: str) -> None:
    backbone, head, optimizer, mask = _with_momentum()
    mask.threshold = 1.0 if how == "threshold" else None
    if how == "threshold":
        mask.update(everything(backbone))
    other = SoftMask(backbone)
    other.update(everything(backbone))
    with mask.attach(optimizer):
        train(backbone, head, optimizer, small_batches(), steps=3)
        if how == "update":
            mask.update(everything(backbone))
        elif how == "in place":
            for tensor in mask.importance.values():
                tensor.fill_(1)
        elif how == "replaced":
            mask.importance = everything(backbone)
        elif how == "loaded":
            mask.load_state_dict(other.state_dict())
        else:
            mask.threshold = 0.5
        before = copied(backbone)
        train(backbone, head, optimizer, small_batches(), steps=3)
    assert same(copied(backbone), before)


def test_momentum_that_is_loaded_in_the_middle_of_an_attachment() -> None:
    backbone, head, optimizer, mask = _with_momentum()
    train(backbone, head, optimizer, small_batches(), steps=3)
    foreign = copy.deepcopy(optimizer.state_dict())
    mask.update(everything(backbone))
    fresh = SGD([*backbone.parameters(), *head.parameters()], lr=0.05, momentum=0.9)
    before = copied(backbone)
    with mask.attach(fresh):
        fresh.load_state_dict(foreign)
        train(backbone, head, fresh, small_batches(), steps=3)
    assert same(copied(backbone), before)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_a_task_that_goes_on_from_a_checkpoint_goes_on_as_it_was(options: dict[str, float]) -> None:
    moved = {}
    for how in ("whole", "attached again", "loaded"):
        torch.manual_seed(0)
        backbone, head = small_backbone(), nn.Linear(6, 3)
        mask = SoftMask(backbone)
        mask.update({name: torch.full_like(p, 0.9) for name, p in backbone.named_parameters()})
        parameters = [*backbone.parameters(), *head.parameters()]
        optimizer = SGD(parameters, lr=0.05, **options)
        handle = mask.attach(optimizer, head)
        train(backbone, head, optimizer, small_batches(), steps=5)
        if how == "loaded":
            state, optimizer = optimizer.state_dict(), SGD(parameters, lr=0.05, **options)
            optimizer.load_state_dict(state)
        if how != "whole":
            handle.remove()
            handle = mask.attach(optimizer, head)
        train(backbone, head, optimizer, small_batches(), steps=5)
        moved[how] = copied(backbone)
    assert same(moved["whole"], moved["attached again"])
    assert same(moved["whole"], moved["loaded"])


def test_an_optimizer_that_never_steps_is_told() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    outer, inner = (SGD(backbone.parameters(), lr=0.05) for _ in range(2))
    with pytest.warns(UserWarning, match=r"no `step\(\)` of this optimizer was seen"), mask.attach(outer):
        train(backbone, head, inner, small_batches(), steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mask.attach(outer):
            train(backbone, head, outer, small_batches(), steps=2)
        backbone.zero_grad()
        with mask.attach(outer):
            pass  # nothing to train: nothing to tell


def test_consolidate_in_the_middle_of_an_attachment() -> None:
    backbone, head, optimizer, mask = _with_momentum()
    with mask.attach(optimizer, head):
        train(backbone, head, optimizer, small_batches(), steps=3)
        mask.consolidate(small_batches(), head)
        assert not picks_gradient(backbone, optimizer)


def test_a_frozen_parameter_with_a_leftover_gradient_is_still_protected() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1, weight_decay=0.1)
    mask.update(everything(backbone))
    x, y = small_batches()[0]
    F.cross_entropy(head(backbone(x)), y).backward()
    backbone[0].requires_grad_(False)
    before = copied(backbone)
    with mask.attach(optimizer):
        optimizer.step()
    assert same(copied(backbone), before)
