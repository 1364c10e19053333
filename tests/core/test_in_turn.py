"""A step that takes a part of the parameters at a time is the same step, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer

from softmask import SoftMask, SubspaceMask
from softmask.core import attachment
from softmask.core.in_turn import INDEPENDENT, moves_one_by_one, parts
from softmask.core.moving import MovingEntries
from tests.core.examples import copied, same, small_backbone, small_batches, train
from tests.core.test_attachment import OPTIMIZERS, backbone_for, batches_for, optimizer_for
from tests.core.test_layer_inputs import Attention


def masks_of(backbone: nn.Module, batches: list[Any]) -> list[SoftMask | SubspaceMask]:
    soft, subspace = SoftMask(backbone), SubspaceMask(backbone, strength=0.5)
    soft.update({name: torch.rand_like(p).clamp(0.2).round(decimals=1) for name, p in backbone.named_parameters()})
    subspace.consolidate(batches[:1])
    return [soft, subspace]


def learned(backbone: nn.Module, make: Callable[[nn.Module], Optimizer], batches: list[Any]) -> dict[str, Tensor]:
    torch.manual_seed(4)
    backbone, head = copy.deepcopy(backbone), nn.Linear(6, 3)
    optimizer, (soft, subspace) = make(backbone), masks_of(backbone, batches)
    with soft.attach(optimizer, scale="update"), subspace.attach(optimizer, scale="update"):
        train(backbone, head, optimizer, batches, steps=4)
    return copied(backbone)


def both_ways(
    monkeypatch: pytest.MonkeyPatch, backbone: nn.Module, make: Callable[[nn.Module], Optimizer], batches: list[Any]
) -> list[dict[str, Tensor]]:
    """In turn, and as a whole: with a copy of everything that the optimizer holds."""
    in_turn = learned(backbone, make, batches)
    with monkeypatch.context() as patch:
        patch.setattr(attachment, "moves_one_by_one", lambda optimizer: False)
        return [in_turn, learned(backbone, make, batches)]


def test_every_optimizer_of_torch_is_known() -> None:
    assert {kind.__name__ for kind in OPTIMIZERS} - {LBFGS.__name__} <= set(INDEPENDENT)


def test_only_the_optimizers_of_torch_themselves() -> None:
    class Own(AdamW):
        """Might do anything."""

    layer = nn.Linear(2, 2)
    assert moves_one_by_one(AdamW(layer.parameters()))
    assert not moves_one_by_one(Own(layer.parameters()))
    assert not moves_one_by_one(LBFGS(layer.parameters()))
    Own.__name__ = "AdamW"
    assert not moves_one_by_one(Own(layer.parameters()))


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_step_in_turn_is_the_step_as_a_whole(kind: type[Optimizer], monkeypatch: pytest.MonkeyPatch) -> None:
    results = both_ways(
        monkeypatch, backbone_for(kind), lambda b: optimizer_for(kind, b.parameters(), True), batches_for(kind)
    )
    assert same(*results)
    assert not same(results[0], copied(backbone_for(kind)))


OPTIONS: dict[str, dict[str, Any]] = {
    "foreach": {"foreach": True},
    "one tensor after the other": {"foreach": False},
    "fused": {"fused": True},
    "amsgrad": {"amsgrad": True},
    "maximise": {"maximize": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "biases without decay"])
def test_ways_of_adamw(name: str, grouped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(backbone: nn.Module) -> Optimizer:
        weights = [p for p in backbone.parameters() if p.dim() > 1]
        rest = [p for p in backbone.parameters() if p.dim() < 2]
        groups = [{"params": weights, "weight_decay": 0.1}, {"params": rest}] if grouped else [*weights, *rest]
        return AdamW(groups, lr=0.05, **OPTIONS[name])

    assert same(*both_ways(monkeypatch, small_backbone(), make, small_batches()))


def test_a_fused_step_with_a_gradient_scaler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scaler leaves what it knows on the optimizer: the step unscales by itself, or skips."""

    def once(overflow: bool) -> dict[str, Tensor]:
        backbone = small_backbone()
        backbone.load_state_dict(start)
        optimizer, scaler = AdamW(backbone.parameters(), lr=0.1, fused=True), torch.amp.GradScaler("cpu")
        soft = SoftMask(backbone)
        soft.update({name: torch.full_like(p, 0.5) for name, p in backbone.named_parameters()})
        with soft.attach(optimizer):
            loss = scaler.scale(backbone(torch.ones(2, 4)).square().sum())
            (loss * torch.inf if overflow else loss).backward()
            scaler.step(optimizer)
        return copied(backbone)

    start = copied(small_backbone())
    assert same(once(overflow=True), start)
    in_turn = once(overflow=False)
    monkeypatch.setattr(attachment, "moves_one_by_one", lambda optimizer: False)
    assert same(in_turn, once(overflow=False))
    assert not same(in_turn, start)


def test_a_closure_makes_the_gradients_of_a_step_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for in_turn in (True, False):
        torch.manual_seed(2)
        backbone = small_backbone()
        soft = SoftMask(backbone)
        soft.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
        optimizer = Adam(backbone.parameters(), lr=0.1)

        def closure(backbone: nn.Module = backbone) -> Tensor:
            loss = backbone(torch.ones(2, 4)).square().sum()
            loss.backward()
            return loss

        if not in_turn:
            monkeypatch.setattr(attachment, "moves_one_by_one", lambda optimizer: False)
        with soft.attach(optimizer):
            assert optimizer.step(closure) > 0
        results.append(copied(backbone))
    assert same(*results)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_step_reads_its_groups_and_does_not_write_to_them(kind: type[Optimizer]) -> None:
    """The parts of a group are copies of it."""
    backbone = backbone_for(kind)
    optimizer = optimizer_for(kind, backbone.parameters(), decay=True)
    before = [{name: copy.copy(value) for name, value in group.items()} for group in optimizer.param_groups]
    train(backbone, nn.Linear(6, 3), optimizer, batches_for(kind), steps=2)
    for was, group in zip(before, optimizer.param_groups, strict=True):
        assert was.keys() == group.keys()
        assert all(was[name] == group[name] for name in was if name != "params")


def test_hooks_of_others_see_the_whole_optimizer() -> None:
    backbone, seen = small_backbone(), []
    soft, optimizer = SoftMask(backbone), AdamW(backbone.parameters(), lr=0.1)
    soft.update({name: torch.ones_like(p) for name, p in backbone.named_parameters()})
    before = copied(backbone)
    with soft.attach(optimizer):
        optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(backbone.parameters(), 0))
        optimizer.register_step_post_hook(lambda given, args, kwargs: seen.append((given, copied(backbone))))
        for p in backbone.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert [given for given, _ in seen] == [optimizer]
    assert same(seen[0][1], before)
    assert all(not optimizer.state[p]["exp_avg"].any() for p in backbone.parameters())


def test_a_step_that_raises_in_the_middle_of_its_parts() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(5, 5, bias=False) for _ in range(3))
    soft, optimizer = SoftMask(layers), AdamW(layers.parameters(), lr=0.1)
    soft.update({name: torch.full((5, 5), 0.75) for name, _ in layers.named_parameters()})
    free = copy.deepcopy(layers)
    plain = AdamW(free.parameters(), lr=0.1)
    for p in (*layers.parameters(), *free.parameters()):
        p.grad = torch.ones_like(p)
    before = copied(layers)
    plain.step()
    optimizer.state[layers[1].weight] = {"step": torch.tensor(0.0)}  # lacks its averages
    with soft.attach(optimizer):
        for _ in range(2):  # an error leaves nothing behind
            with pytest.raises(KeyError):
                optimizer.step()
            after = copied(layers)
            expected = before["0.weight"] + (copied(free)["0.weight"] - before["0.weight"]) / 4
            torch.testing.assert_close(after["0.weight"], expected)
            assert torch.equal(after["1.weight"], before["1.weight"])
            assert torch.equal(after["2.weight"], before["2.weight"])
            optimizer.state[layers[0].weight] = {}
            layers.load_state_dict(before)


def test_what_has_no_gradient_is_not_touched() -> None:
    backbone = small_backbone()
    soft, optimizer = SoftMask(backbone), AdamW(backbone.parameters(), lr=0.1)
    soft.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    versions = [p._version for p in backbone[0].parameters()]
    for p in backbone[3].parameters():
        p.grad = torch.ones_like(p)
    with soft.attach(optimizer):
        optimizer.step()
    assert [p._version for p in backbone[0].parameters()] == versions


# ---------------------------------------------------------------------------------------------- the parts


def entries(*sizes: int) -> list[MovingEntries]:
    return [MovingEntries(nn.Parameter(torch.zeros(size)), 0.5) for size in sizes]


def test_parts_fit_into_the_largest_parameter() -> None:
    moving = entries(3, 10, 2, 2, 6, 1, 9)
    found = [[moving.index(each) for each in part] for part in parts(moving)]  # type: ignore[arg-type]
    assert found == [[0], [1], [2, 3, 4], [5, 6]]
    assert parts([]) == []


def test_what_shares_a_parameter_stays_together_in_its_order() -> None:
    """Weight and bias of a layer are projected as one matrix, and the three layers of an attention are one tensor."""
    net = Attention()
    masks = masks_of(net, [torch.randn(3, 1, 8)])
    moving = [
        each
        for mask in masks
        for each in mask.attach(SGD(net.parameters(), lr=0.1, momentum=0.1))._moving()  # type: ignore[attr-defined]
    ]
    for part in parts(moving):
        of = {id(p) for each in part for p in each.parameters}
        assert all(of.isdisjoint(map(id, each.parameters)) for each in moving if each not in part)
        assert [moving.index(each) for each in part] == sorted(moving.index(each) for each in part)
    assert len(parts(moving)) > 1
