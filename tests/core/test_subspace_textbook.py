"""A SubspaceMask against the formulas of its papers, written down for layers of random sizes."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer, SparseAdam

from softmask import SubspaceMask
from tests.core.examples import copied, train
from tests.core.test_attachment import OPTIMIZERS, backbone_for, batches_for, optimizer_for


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1).double()


def normalised(x: Tensor) -> Tensor:
    """The second moment of the inputs, of mean eigenvalue 1."""
    moment = x.T @ x
    return moment / moment.trace() * len(moment)


def sgp(tasks: list[Tensor], strength: float) -> Tensor:
    """Saha and Roy, AAAI 2023: lambda_i = (alpha + 1) s_i / (alpha s_i + max s), with alpha + 1 = 11 at the middle."""
    alpha = 11 * strength / (1 - strength) - 1
    vectors, values, _ = torch.linalg.svd(sum(normalised(x) for x in tasks))  # type: ignore[call-overload]
    sizes = values.clamp(min=0).sqrt()
    sizes = torch.where(values > 1e-10, sizes, 0)
    share = (alpha + 1) * sizes / (alpha * sizes + sizes.max())
    return torch.eye(len(vectors)).double() - vectors @ share.diag() @ vectors.T


def ridge(tasks: list[Tensor], strength: float) -> Tensor:
    """A conceptor (Jaeger, 2014): I - R (R + aperture^-2 I)^-1."""
    moment = sum(normalised(x) for x in tasks)
    whole = torch.eye(len(moment)).double()  # type: ignore[arg-type]
    return whole - moment @ torch.linalg.inv(moment + (1 - strength) / strength * whole)


def gpm(tasks: list[Tensor], strength: float) -> Tensor:
    """Saha et al., ICLR 2021, eq. 8 and 9: for each task as many new directions as cover the share of its energy."""
    basis = torch.zeros(tasks[0].shape[1], 0).double()
    for x in tasks:
        rest = (x - x @ basis @ basis.T).T
        vectors, sizes, _ = torch.linalg.svd(rest, full_matrices=False)
        covered = (x @ basis).square().sum()
        for vector, size in zip(vectors.T, sizes, strict=True):
            if covered >= strength * x.square().sum():
                break
            basis, covered = torch.cat([basis, vector[:, None]], 1), covered + size**2
    return torch.eye(len(basis)).double() - basis @ basis.T


@pytest.mark.parametrize("rule", [sgp, ridge, gpm], ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("seed", range(8))
def test_a_step_of_a_random_layer(rule: Any, seed: int) -> None:
    torch.manual_seed(seed)
    inputs, outputs, tasks = (int(torch.randint(low, high, ())) for low, high in ((3, 12), (2, 6), (1, 4)))
    strength = float(torch.empty(()).uniform_(0.3, 0.95))
    layer = nn.Linear(inputs, outputs)
    mask = SubspaceMask(layer, strength=strength, rule=rule.__name__)
    seen = [torch.randn(5, 3) @ torch.randn(3, inputs) for _ in range(tasks)]
    for x in seen:
        mask.consolidate([x])
    free = copy.deepcopy(layer)
    before = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double()
    for each in (layer, free):
        for p in each.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        optimizer = Adam(each.parameters(), lr=0.1)
        handle = mask.attach(optimizer) if each is layer else None
        optimizer.step()
        if handle:
            handle.remove()
    moved, wanted = (torch.cat([n.weight, n.bias[:, None]], 1).detach().double() - before for n in (layer, free))
    torch.testing.assert_close(moved, wanted @ rule([with_ones(x) for x in seen], strength), rtol=1e-4, atol=1e-6)
    assert (moved - wanted).norm() > 0.1 * wanted.norm()


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_a_direction_of_which_nothing_is_free_does_not_move(kind: type[Optimizer]) -> None:
    """Under weight decay, too. The direction is the one input that the first layer has met; of words, a row."""
    backbone = backbone_for(kind)
    old = torch.arange(3)[None] if kind is SparseAdam else torch.randn(1, 4)
    mask = SubspaceMask(backbone, strength=1)
    mask.consolidate([old])
    before, optimizer = copied(backbone), optimizer_for(kind, backbone.parameters(), decay=True)
    with mask.attach(optimizer):
        train(backbone, nn.Linear(6, 3), optimizer, batches_for(kind), steps=5)
    moved = {name: tensor.double() - before[name] for name, tensor in copied(backbone).items()}
    assert all(tensor.any() for tensor in moved.values())
    if kind is SparseAdam:
        assert not moved["words.weight"][old[0]].any()
        return
    along = moved["0.weight"] @ old[0].double() + moved.get("0.bias", torch.zeros(()))
    assert along.abs().max() < 2e-6 * max(1, float(moved["0.weight"].abs().max()))


def test_a_task_in_the_free_subspace_is_learned_and_leaves_old_outputs_alone() -> None:
    """On a linear network, where the free subspace of one layer is that of the whole; in float64, where rounding that
    adds up over the steps does not show."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(20, 16), nn.Linear(16, 6)).double()
    basis = torch.linalg.qr(torch.randn(20, 20, dtype=torch.float64)).Q
    old, new = torch.randn(50, 4).double() @ basis[:4], torch.randn(30, 10).double() @ basis[4:14]
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([old])
    answer, labels = net(old).detach(), torch.randn(10, 6).double()
    wanted = new @ basis[4:14].T @ labels
    optimizer, losses = AdamW(net.parameters(), lr=0.01, weight_decay=0.001), []
    with mask.attach(optimizer):
        for _ in range(300):
            optimizer.zero_grad()
            loss = F.mse_loss(net(new), wanted)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]
    assert float((net(old).detach() - answer).norm() / answer.norm()) < 1e-10
    assert all(later < earlier for earlier, later in itertools.pairwise(losses[::100]))
