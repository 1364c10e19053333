"""A mask in the loops that people write: closures, accumulation, clipping, groups, autocast, scalers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from softmask import SoftMask
from tests.core.examples import copied, everything, half_blocked, moves, same, small_backbone, small_batches, train

# ---------------------------------------------------------------------------------------------- the user's own loop


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("scale", ["gradient", "update"])
def test_a_closure(scale: str, by_name: bool) -> None:
    results = []
    for with_closure in (False, True):
        torch.manual_seed(1)
        backbone, head = small_backbone(), nn.Linear(6, 3)
        mask = SoftMask(backbone)
        mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
        optimizer = SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
        x, y = small_batches()[0]

        def closure(backbone=backbone, head=head, optimizer=optimizer, x=x, y=y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(backbone(x)), y)
            loss.backward()
            return loss

        with mask.attach(optimizer, head, scale):
            for _ in range(3):
                if with_closure:
                    loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
                    assert loss.item() > 0
                else:
                    closure()
                    optimizer.step()
        results.append({**copied(backbone), **{f"head.{k}": v for k, v in copied(head).items()}})
    assert same(*results)


def _loop(
    scale: str, step: Callable[[nn.Module, nn.Module, Optimizer], None], optimizer: Any = None
) -> dict[str, Tensor]:
    torch.manual_seed(1)
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    mask.update({"0.weight": torch.eye(8, 4)})
    made = (optimizer or (lambda b, h: SGD([*b.parameters(), *h.parameters()], lr=0.5)))(backbone, head)
    before = backbone[0].weight.detach().clone()
    with mask.attach(made, head, scale):
        for _ in range(3):
            made.zero_grad()
            step(backbone, head, made)
    blocked = mask.importance["0.weight"] == 1
    assert torch.equal(backbone[0].weight[blocked], before[blocked])
    return {**copied(backbone), **{f"head.{k}": v for k, v in copied(head).items()}}


def assert_same_result(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["auto", "update"])
def test_gradient_accumulation_equals_one_big_batch(scale: str) -> None:
    x, y = small_batches((12,))[0]

    def big(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        F.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()

    def small(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        for xs, ys in zip(x.split(4), y.split(4), strict=True):
            (F.cross_entropy(head(backbone(xs)), ys) / 3).backward()
        optimizer.step()

    assert_same_result(_loop(scale, big), _loop(scale, small))


@pytest.mark.parametrize("scale", ["auto", "update"])
def test_clipping_before_the_step(scale: str) -> None:
    """Clipped by the norm of the whole gradient, then masked: both forms the same."""
    x, y = small_batches((12,))[0]

    def step(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        F.cross_entropy(head(backbone(x)), y).backward()
        norm = nn.utils.clip_grad_norm_([*backbone.parameters(), *head.parameters()], 0.1)
        assert norm > 0.1
        optimizer.step()

    assert_same_result(_loop(scale, step), _loop("gradient", step))


@pytest.mark.parametrize("scale", ["auto", "gradient", "update"])
def test_several_groups_with_their_own_learning_rate(scale: str) -> None:
    x, y = small_batches((12,))[0]
    rates = {0: 0.5, 3: 0.01}

    def step(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        before = {name: p.detach().clone() for name, p in backbone.named_parameters()}
        gradients = torch.autograd.grad(F.cross_entropy(head(backbone(x)), y), list(backbone.parameters()))
        F.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()
        for (name, p), gradient, importance in zip(backbone.named_parameters(), gradients, known.values(), strict=True):
            expected = before[name] - rates[int(name[0])] * (1 - importance) * gradient
            torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-6)

    known: dict[str, Tensor] = {}

    def grouped(backbone: nn.Module, head: nn.Module) -> Optimizer:
        torch.manual_seed(1)
        small_backbone(), nn.Linear(6, 3)
        known.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
        known["0.weight"] = torch.maximum(known["0.weight"], torch.eye(8, 4))
        return SGD(
            [
                {"params": backbone[0].parameters(), "lr": rates[0]},
                {"params": backbone[3].parameters(), "lr": rates[3]},
                {"params": head.parameters()},
            ],
            lr=0.1,
        )

    _loop(scale, step, grouped)


def test_a_group_that_is_added_later_is_masked_too() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), Adam(backbone[0].parameters(), lr=0.1)
    mask.update(everything(backbone))
    with mask.attach(optimizer):
        optimizer.add_param_group({"params": backbone[3].parameters()})
        assert not moves(backbone, optimizer)


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_autocast(kind: type[Optimizer]) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask, blocked = half_blocked(backbone)
    optimizer, before = kind([*backbone.parameters(), *head.parameters()], lr=0.05), copied(backbone)
    with mask.attach(optimizer, head=head):
        for x, y in small_batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(head(backbone(x)), y)
            loss.backward()
            optimizer.step()
    for name, parameter in backbone.named_parameters():
        assert torch.equal(parameter[blocked[name]], before[name][blocked[name]])
        assert (parameter[~blocked[name]] != before[name][~blocked[name]]).any()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mask.consolidate(small_batches(), head, [nn.Linear(6, 2)])
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in mask.importance.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_parameters_of_other_precisions(kind: type[Optimizer], dtype: torch.dtype) -> None:
    backbone, head = small_backbone().to(dtype), nn.Linear(6, 3).to(dtype)
    mask, blocked = half_blocked(backbone)
    options = {"eps": 1e-4} if kind is AdamW else {}  # the default is 0 in float16: AdamW itself would divide by it
    optimizer, before = kind(backbone.parameters(), lr=0.1, **options), copied(backbone)
    with mask.attach(optimizer):
        train(backbone, head, optimizer, [(x.to(dtype), y) for x, y in small_batches()], steps=3)
    for name, parameter in backbone.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter[blocked[name]], before[name][blocked[name]])
        assert (parameter[~blocked[name]] != before[name][~blocked[name]]).any()


@pytest.mark.parametrize("scale", ["gradient", "update"])
def test_a_gradient_scaler(scale: str) -> None:
    """It unscales before the step, so the mask sees true gradients; a step that it skips is no step."""
    x, y = small_batches((12,))[0]

    def plain(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        F.cross_entropy(head(backbone(x)), y).backward()
        optimizer.step()

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert scaler.is_enabled()

    def scaled(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        scaler.scale(F.cross_entropy(head(backbone(x)), y)).backward()
        scaler.step(optimizer)
        scaler.update()

    def overflowing(backbone: nn.Module, head: nn.Module, optimizer: Optimizer) -> None:
        before = copied(backbone)
        (scaler.scale(F.cross_entropy(head(backbone(x)), y)) * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        assert same(copied(backbone), before)

    assert_same_result(_loop(scale, plain), _loop(scale, scaled))
    _loop(scale, overflowing)


@pytest.mark.parametrize("scale", ["gradient", "update"])
def test_the_head_factor(scale: str) -> None:
    """One step of a head moves by the unblocked share; the head of another task not at all."""
    backbone, head, other = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3)
    mask = SoftMask(backbone)
    mask.update({"0.weight": torch.ones(8, 4)})
    optimizer = SGD([*backbone.parameters(), *head.parameters(), *other.parameters()], lr=0.1)
    before, unmoved = copied(head), copied(other)
    head.weight.grad = torch.ones_like(head.weight)
    with mask.attach(optimizer, head=(p for p in head.parameters()), scale=scale):
        optimizer.step()
    share = 1 - 32 / (32 + 8 + 48 + 6)
    torch.testing.assert_close(head.weight.detach(), before["weight"] - 0.1 * share, rtol=1e-6, atol=1e-7)
    assert same(copied(other), unmoved)


@pytest.mark.parametrize("scale", ["gradient", "update"])
def test_a_parameter_of_head_and_backbone_is_scaled_once(scale: str) -> None:
    backbone, head = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    head.weight = backbone.weight
    mask = SoftMask(backbone)
    mask.update({"weight": torch.full((3, 3), 0.5)})
    optimizer, before = SGD(backbone.parameters(), lr=1.0), backbone.weight.detach().clone()
    backbone.weight.grad = torch.ones(3, 3)
    with mask.attach(optimizer, head=head, scale=scale):
        optimizer.step()
    torch.testing.assert_close(backbone.weight.detach(), before - 0.5)


@pytest.mark.parametrize("scale", ["auto", "update"])
@pytest.mark.parametrize(("threshold", "stays"), [(0.0, True), (1.0, False)])
def test_hard_masks_at_their_bounds(threshold: float, stays: bool, scale: str) -> None:
    """At 0 backbone and head are constant to the bit; 1 is plain training to the bit."""
    backbone, head = small_backbone(), nn.Linear(6, 3)
    free, free_head = copy.deepcopy(backbone), copy.deepcopy(head)
    mask = SoftMask(backbone, threshold)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    optimizer = SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    before = {**copied(backbone), **{f"head.{k}": v for k, v in copied(head).items()}}
    with mask.attach(optimizer, head, scale):
        train(backbone, head, optimizer, small_batches(), steps=5)
    if not stays:
        train(free, free_head, SGD([*free.parameters(), *free_head.parameters()], lr=0.1), small_batches(), steps=5)
        before = {**copied(free), **{f"head.{k}": v for k, v in copied(free_head).items()}}
    assert same({**copied(backbone), **{f"head.{k}": v for k, v in copied(head).items()}}, before)


@pytest.mark.parametrize("without_gradients", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_was_attached_where_gradients_are_off(without_gradients: type) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    optimizer = AdamW(backbone.parameters(), lr=0.1)
    with without_gradients():
        mask = SoftMask(backbone)
        mask.update(everything(backbone))
        handle = mask.attach(optimizer, head)
    before = copied(backbone)
    train(backbone, head, optimizer, small_batches(), steps=2)
    handle.remove()
    assert same(copied(backbone), before)


def test_the_loop_of_the_documentation() -> None:
    """Three tasks; old heads stay as they were, importance grows, what is blocked stays."""
    backbone, heads = small_backbone(dropout=0.2), [nn.Linear(6, 3) for _ in range(3)]
    mask, grown = SoftMask(backbone), 0.0
    for task, head in enumerate(heads):
        old_heads, before = [copied(old) for old in heads[:task]], copied(backbone)
        blocked = {name: tensor == 1 for name, tensor in mask.importance.items()}
        optimizer = SGD([*backbone.parameters(), *head.parameters()], lr=0.05)
        with mask.attach(optimizer, head=head):
            train(backbone, head, optimizer, small_batches(seed=task), steps=6)
        mask.consolidate(small_batches(seed=task), head=head, previous_heads=heads[:task])
        assert all(same(copied(old), kept) for old, kept in zip(heads[:task], old_heads, strict=True))
        for name, parameter in backbone.named_parameters():
            assert torch.equal(parameter[blocked[name]], before[name][blocked[name]])
        assert mask.mean() > grown
        grown = mask.mean()
    assert 0.5 < grown < 0.99
