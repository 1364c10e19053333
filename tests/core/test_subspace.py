"""A SubspaceMask: what old tasks use does not move, whatever the optimizer; what they do not use is free."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
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


# ---------------------------------------------------------------------------------------------- in other loops


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
