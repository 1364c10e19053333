"""A SubspaceMask: what old tasks use does not move, whatever the optimizer; what they do not use is free."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, SparseAdam

from softmask import SoftMask, SubspaceMask
from tests.core.examples import copied, same, small_backbone, small_batches, train
from tests.core.test_attachment import OPTIMIZERS, backbone_for, batches_for, optimizer_for
from tests.core.test_layer_inputs import CONVOLUTIONS, Attention, Conv1D


def textbook(mask: SubspaceMask, name: str, group: int, alpha: float) -> Tensor:
    """P of scaled gradient projection, written down."""
    values, vectors = torch.linalg.eigh(mask.used[name][group])
    kept = torch.zeros_like(vectors)
    for value, vector in zip(values.clamp(min=0), vectors.T, strict=True):
        root = (value / values.max()).sqrt()
        kept += (1 - (alpha + 1) * root / (alpha * root + 1)) * torch.outer(vector, vector)
    return kept


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(9, 3), (2, 9)),
    "linear without bias": (lambda: nn.Linear(9, 3, bias=False), (2, 9)),
    "Conv1D": (lambda: Conv1D(3, 9), (2, 9)),
    "attention": (Attention, (3, 1, 8)),
    "attention across": (lambda: Attention(across=True, kdim=7, vdim=6), (3, 1, 8)),
    **{
        name: (
            lambda kind=kind, sizes=sizes, options=options: kind(*sizes, **options),
            (1, sizes[0], *[5] * dimensions),
        )
        for name, (kind, sizes, options) in CONVOLUTIONS.items()
        for dimensions in [int(name[0])]
    },
}


# ---------------------------------------------------------------------------------------------- the projection


@pytest.mark.parametrize("name", ["linear", "linear without bias", "Conv1D", *CONVOLUTIONS])
def test_a_step_is_projected_by_the_textbook(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    mask = SubspaceMask(layer, strength=0.5)
    mask.consolidate([torch.randn(4, *shape[1:])])
    free, old = copy.deepcopy(layer), copied(layer)
    gradients = [torch.randn_like(p) for p in layer.parameters()]
    for each in (layer, free):
        optimizer = Adam(each.parameters(), lr=0.1)
        for p, gradient in zip(each.parameters(), gradients, strict=True):
            p.grad = gradient.clone()
        with mask.attach(optimizer) if each is layer else SubspaceMask(each).attach(optimizer):
            optimizer.step()

    def matrix(weights: dict[str, Tensor], group: int) -> Tensor:
        weight = weights["weight"].T if name == "Conv1D" else weights["weight"]
        groups = getattr(layer, "groups", 1)
        parts = [
            t.chunk(groups)[group].flatten(1)
            for t in (weight, *(weights["bias"][:, None] for _ in weights if _ == "bias"))
        ]
        return torch.cat(parts, 1).double()

    for group in range(getattr(layer, "groups", 1)):
        before = matrix(old, group)
        expected = before + (matrix(copied(free), group) - before) @ textbook(mask, "itself", group, alpha=10)
        torch.testing.assert_close(matrix(copied(layer), group), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", ["sgp", "ridge", "gpm"])
@pytest.mark.parametrize("name", LAYERS)
def test_strength_one_keeps_the_output_on_old_inputs(name: str, rule: Any) -> None:
    make, shape = LAYERS[name]
    net, x = make().eval(), torch.randn(shape)
    mask = SubspaceMask(net, strength=1, rule=rule)
    mask.consolidate([x])
    old, weights = net(x).detach(), copied(net)
    optimizer = AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    with mask.attach(optimizer):
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(shape)).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(net(x), old, rtol=1e-5, atol=1e-6)
    assert same(copied(net), weights) == all(share == 0 for share in mask.free().values())


@pytest.mark.parametrize("decay", [False, True], ids=["no decay", "decay"])
@pytest.mark.parametrize(
    "kind",
    [kind for kind in OPTIMIZERS if kind is not LBFGS],  # goes so far that rounding shows: see the test of a closure
    ids=lambda kind: kind.__name__,
)
def test_no_direction_in_use_moves_under_any_optimizer(kind: type[Optimizer], decay: bool) -> None:
    backbone, head = backbone_for(kind), nn.Linear(6, 3)
    old = torch.arange(3)[None] if kind is SparseAdam else torch.randn(2, 4)
    mask = SubspaceMask(backbone, strength=1)
    mask.consolidate([old])
    answer, weights = backbone(old).detach(), copied(backbone)
    optimizer = optimizer_for(kind, backbone.parameters(), decay)
    with mask.attach(optimizer):
        train(backbone, head, optimizer, batches_for(kind), steps=5)
    torch.testing.assert_close(backbone(old), answer, rtol=1e-5, atol=2e-6)
    assert not same(copied(backbone), weights)


@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_strength_zero_is_plain_training_to_the_bit(kind: type[Optimizer]) -> None:
    results = []
    for masked in (True, False):
        torch.manual_seed(1)
        backbone, head = backbone_for(kind), nn.Linear(6, 3)
        optimizer = optimizer_for(kind, backbone.parameters(), decay=True)
        mask = SubspaceMask(backbone, strength=0)
        if masked:
            mask.consolidate(batches_for(kind))
            with mask.attach(optimizer, head=head):
                train(backbone, head, optimizer, batches_for(kind), steps=5)
            assert set(mask.free().values()) == {1.0}
        else:
            train(backbone, head, optimizer, batches_for(kind), steps=5)
        results.append(copied(backbone))
    assert same(*results)


def test_the_first_task_is_plain_training_to_the_bit() -> None:
    results = []
    for masked in (True, False):
        torch.manual_seed(1)
        backbone, head = small_backbone(), nn.Linear(6, 3)
        optimizer = AdamW([*backbone.parameters(), *head.parameters()])
        handle = SubspaceMask(backbone, strength=1).attach(optimizer, head) if masked else None
        train(backbone, head, optimizer, small_batches(), steps=4)
        if handle:
            handle.remove()
        results.append(copied(backbone))
    assert same(*results)


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_layer_without_free_directions_stays_to_the_bit(kind: type[Optimizer]) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    mask = SubspaceMask(backbone, strength=1)
    mask.consolidate([torch.randn(50, 4)])
    assert mask.free() == {"0": 0, "3": 0}
    before, optimizer = copied(backbone), kind([*backbone.parameters(), *head.parameters()], lr=0.1)
    with mask.attach(optimizer, head=head):
        train(backbone, head, optimizer, small_batches(), steps=4)
    assert same(copied(backbone), before)


def test_plain_sgd_projects_gradients_with_the_same_result() -> None:
    results = []
    for scale in ("update", "auto"):
        torch.manual_seed(1)
        backbone, head = nn.Sequential(small_backbone(), nn.LayerNorm(6)), nn.Linear(6, 3)
        mask = SubspaceMask(backbone, strength=0.5)
        mask.consolidate([torch.randn(5, 4)])
        optimizer = SGD(backbone.parameters(), lr=0.3)
        with mask.attach(optimizer, scale=scale):  # type: ignore[arg-type]
            train(backbone, head, optimizer, small_batches(), steps=4)
        results.append(copied(backbone))
    for name in results[0]:
        torch.testing.assert_close(results[0][name], results[1][name], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------- what is kept


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    net, old = nn.Linear(6, 3).to(dtype), torch.randn(2, 6).to(dtype)
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([old])
    answer, optimizer = net(old).detach(), AdamW(net.parameters(), lr=0.01)
    with mask.attach(optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(5, 6, dtype=dtype)).square().sum().backward()
            optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 0.05
    torch.testing.assert_close(net(old), answer, rtol=tolerance, atol=tolerance)


def test_a_step_inside_autocast_is_projected_in_full_precision() -> None:
    net, old = nn.Linear(6, 3), torch.randn(2, 6)
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([old])
    answer, optimizer = net(old).detach(), AdamW(net.parameters(), lr=0.01)
    with mask.attach(optimizer), torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(net(old), answer, rtol=1e-5, atol=1e-6)


def test_a_closure_is_projected() -> None:
    net, old = small_backbone(), torch.randn(2, 4)
    mask = SubspaceMask(net, strength=1)
    mask.consolidate([old])
    answer, optimizer = net(old).detach(), LBFGS(net.parameters(), lr=0.1)
    with mask.attach(optimizer):
        train(net, nn.Linear(6, 3), optimizer, small_batches(), steps=2)
    torch.testing.assert_close(net(old), answer, rtol=1e-5, atol=1e-5)


def test_both_masks_on_one_optimizer() -> None:
    net, old = small_backbone(), torch.randn(2, 4)
    importance, subspace = SoftMask(net), SubspaceMask(net, strength=1)
    importance.update({name: torch.full_like(p, 0.5) for name, p in net.named_parameters()})
    subspace.consolidate([old])
    answer, weights = net(old).detach(), copied(net)
    optimizer = AdamW(net.parameters(), lr=0.01)
    with importance.attach(optimizer), subspace.attach(optimizer):
        train(net, nn.Linear(6, 3), optimizer, small_batches(), steps=3)
    torch.testing.assert_close(net(old), answer, rtol=1e-5, atol=1e-6)
    assert not same(copied(net), weights)
