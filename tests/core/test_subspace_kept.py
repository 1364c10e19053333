"""Directions that a SubspaceMask keeps and leaves free, by strength, rule and rank; leaks of projected gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from softmask import SubspaceMask
from tests.core.examples import copied, same, small_backbone, small_batches, train


def drift(optimizer_of: Callable[[Any], Optimizer], scale: str) -> float:
    """How far a linear network's old outputs move, relative to their size, while it learns another task."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(12, 10), nn.Linear(10, 4))
    old = torch.randn(40, 3) @ torch.randn(3, 12)
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([old])
    answer, weights = net(old).detach(), copied(net)
    optimizer = optimizer_of(net.parameters())
    x = torch.randn(64, 12)
    y = torch.randn(64, 4)
    with mask.attach(optimizer, scale=scale):  # type: ignore[arg-type]
        for _ in range(100):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
    assert not same(copied(net), weights)
    return float((net(old).detach() - answer).norm() / answer.norm())


LEAKING = {
    "Adam": lambda p: Adam(p, lr=0.01),
    "AdamW": lambda p: AdamW(p, lr=0.01, weight_decay=0.05),
    "SGD with decay": lambda p: SGD(p, lr=0.05, weight_decay=0.01),
}


@pytest.mark.parametrize("name", LEAKING)
def test_projected_gradients_leak_where_projected_updates_do_not(name: str) -> None:
    assert drift(LEAKING[name], "gradient") > 0.03
    assert drift(LEAKING[name], "update") < 1e-6


def test_under_plain_sgd_neither_leaks() -> None:
    assert drift(lambda p: SGD(p, lr=0.05), "gradient") < 1e-6
    assert drift(lambda p: SGD(p, lr=0.05), "update") < 1e-6


def test_more_strength_keeps_more() -> None:
    for rule in ("sgp", "ridge", "gpm"):
        moved = []
        for strength in (0, 0.1, 0.5, 0.9, 0.99, 1):
            torch.manual_seed(5)
            backbone, head, old = small_backbone(), nn.Linear(6, 3), torch.randn(3, 4)
            mask = SubspaceMask(backbone, strength=strength, rule=rule)  # type: ignore[arg-type]
            mask.consolidate([old])
            answer, free = backbone(old).detach(), sum(mask.free().values())
            optimizer = AdamW(backbone.parameters(), lr=0.01)
            with mask.attach(optimizer):
                train(backbone, head, optimizer, small_batches(), steps=3)
            moved.append((free, float((backbone(old).detach() - answer).norm())))
        for index in (0, 1):
            falls = [each[index] for each in moved]
            assert all(a >= b - 1e-6 for a, b in itertools.pairwise(falls)), (rule, falls)
        assert moved[0][1] > 0.1
        assert moved[-1][1] < 1e-5


def test_rows_of_an_embedding_keep_by_use() -> None:
    net = nn.Embedding(4, 3)
    before, mask = net.weight.detach().clone(), SubspaceMask(net, strength=0.5)
    mask.consolidate([torch.tensor([0, 0, 0, 0, 1])])
    optimizer = SGD(net.parameters(), lr=1.0, momentum=0.1)
    net.weight.grad = torch.ones(4, 3)
    with mask.attach(optimizer):
        optimizer.step()
    moved = (before - net.weight.detach())[:, 0]
    assert torch.equal(moved[[0]], torch.zeros(1))
    torch.testing.assert_close(moved[1], torch.tensor(1 - 11 * 0.5 / (10 * 0.5 + 1)))
    torch.testing.assert_close(moved[2:], torch.ones(2))


def test_other_parameters_are_kept_once_a_task_is_learned() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([torch.randn(2, 4)])
    assert mask.free()["1.weight"] == mask.free()["1.bias"] == 0
    before, optimizer = copied(net), AdamW(net.parameters(), weight_decay=0.1)
    with mask.attach(optimizer):
        train(net, nn.Linear(4, 3), optimizer, small_batches(), steps=3)
    after = copied(net)
    assert all(torch.equal(after[name], before[name]) for name in ("1.weight", "1.bias"))
    assert not torch.equal(after["0.weight"], before["0.weight"])


@pytest.mark.parametrize("rank", [None, 6])
@pytest.mark.parametrize("which", ["weight", "bias"])
def test_what_is_frozen_is_no_way_out(which: str, rank: int | None) -> None:
    """The other half of a layer is projected by its own moment: nothing is put into what does not move."""
    net, old = nn.Linear(6, 3), torch.randn(2, 6)
    mask = SubspaceMask(net, strength=1, rank=rank)
    net.get_parameter(which).requires_grad_(False)
    mask.consolidate([old])
    answer, before = net(old).detach(), copied(net)
    optimizer = AdamW(net.parameters(), lr=0.1)
    with mask.attach(optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(5, 6)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(net(old), answer, rtol=1e-5, atol=1e-6)
    assert torch.equal(copied(net)[which], before[which])


def test_gpm_covers_the_share_of_each_task_and_grows() -> None:
    net, mask, energies = nn.Linear(20, 3), None, []
    mask = SubspaceMask(net, strength=0.9, rule="gpm")
    tasks = [torch.randn(50, 6) @ torch.randn(6, 20) for _ in range(3)]
    for index, x in enumerate(tasks):
        mask.consolidate([x])
        projector = mask.used["itself"][0]
        torch.testing.assert_close(projector @ projector, projector)
        energies.append(float(projector.trace()))
        for seen in tasks[: index + 1]:
            rows = torch.cat([seen, torch.ones(50, 1)], 1).double()
            assert (rows @ projector).square().sum() >= 0.9 * rows.square().sum()
    assert energies == sorted(energies)
    assert energies[0] <= 7
    assert mask.free()["itself"] == pytest.approx(1 - energies[-1] / 21)


def test_ridge_and_sums_never_give_back() -> None:
    """x / (x + lambda) is operator monotone: what is taken after one more task is no less in any direction."""
    net, mask = nn.Linear(8, 3), None
    mask = SubspaceMask(net, strength=0.7, rule="ridge")
    before = torch.zeros(9, 9, dtype=torch.float64)
    for _ in range(4):
        mask.consolidate([torch.randn(5, 3) @ torch.randn(3, 8)])
        used = mask.used["itself"][0]
        taken = used @ torch.linalg.inv(used + 0.3 / 0.7 * torch.eye(9, dtype=torch.float64))
        assert torch.linalg.eigvalsh(taken - before).min() > -1e-9
        before = taken


@pytest.mark.parametrize("rule", ["sgp", "ridge", "gpm"])
def test_a_rank_that_holds_everything_equals_no_rank(rule: Any) -> None:
    results = []
    for rank in (None, 6):
        torch.manual_seed(1)
        net = nn.Linear(16, 4)
        mask = SubspaceMask(net, strength=0.8, rank=rank, rule=rule)
        for _ in range(2):
            mask.consolidate([torch.randn(3, 16)])
        optimizer = Adam(net.parameters(), lr=0.1)
        with mask.attach(optimizer):
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(5, 16)).square().sum().backward()
                optimizer.step()
        results.append((mask.free()["itself"], copied(net)))
    assert results[0][0] == pytest.approx(results[1][0])
    for name in ("weight", "bias"):
        torch.testing.assert_close(results[0][1][name], results[1][1][name], rtol=1e-4, atol=1e-5)


def test_a_full_basis_of_low_rank_keeps_what_is_older() -> None:
    mask = SubspaceMask(nn.Linear(12, 3, bias=False), strength=1, rank=5, rule="gpm")
    tasks = [torch.randn(30, 4) @ torch.randn(4, 12) for _ in range(2)]
    for x in tasks:
        mask.consolidate([x])
    basis = mask.used["itself"][0]
    torch.testing.assert_close(basis.T @ basis, torch.eye(5, dtype=torch.float64))
    rows = tasks[0].double()
    torch.testing.assert_close(rows @ basis @ basis.T, rows, rtol=1e-5, atol=1e-5)
