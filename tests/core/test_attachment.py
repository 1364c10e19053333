"""A mask on an optimizer: what it protects under every optimizer of torch, and when it scales what."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, RMSprop, SparseAdam

from softmask import SoftMask
from tests.core.examples import copied, everything, half_blocked, moves, same, small_backbone, small_batches, train

OPTIMIZERS = [
    kind
    for _, kind in sorted(vars(torch.optim).items())
    if inspect.isclass(kind) and issubclass(kind, Optimizer) and kind is not Optimizer
]
# An entry's step depends on other entries: on norms and means over a tensor, on a matrix as a whole, on a line search.
COUPLED = {"Adafactor", "LBFGS", "Muon"}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 6, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1)


def backbone_for(kind: type[Optimizer]) -> nn.Module:
    if kind is SparseAdam:
        return Words()
    if kind.__name__ == "Muon":  # younger than the lowest torch that is supported
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 6, bias=False))
    return small_backbone()


def batches_for(kind: type[Optimizer]) -> list[tuple[Tensor, Tensor]]:
    if kind is SparseAdam:
        return [(torch.arange(9).reshape(3, 3), torch.arange(3)) for _ in range(2)]
    return small_batches()


def optimizer_for(kind: type[Optimizer], parameters: Any, decay: bool) -> Optimizer:
    options: dict[str, float] = {"lr": 0.05}
    if decay and "weight_decay" in inspect.signature(kind).parameters:
        options["weight_decay"] = 0.1
    return kind(parameters, **options)


# ---------------------------------------------------------------------------------------------- every optimizer


def test_the_list_of_optimizers_is_complete() -> None:
    assert {SGD, Adam, AdamW, RMSprop, LBFGS, SparseAdam} <= set(OPTIMIZERS)


@pytest.mark.parametrize("scale", ["auto", "update"])
@pytest.mark.parametrize("decay", [False, True], ids=["no decay", "decay"])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_importance_one_cannot_move(kind: type[Optimizer], decay: bool, scale: str) -> None:
    backbone, head = backbone_for(kind), nn.Linear(6, 3)
    mask, blocked = half_blocked(backbone)
    optimizer = optimizer_for(kind, backbone.parameters(), decay)
    before = copied(backbone)
    with mask.attach(optimizer, scale=scale):
        train(backbone, head, optimizer, batches_for(kind), steps=5)
    for name, parameter in backbone.named_parameters():
        assert torch.equal(parameter[blocked[name]], before[name][blocked[name]])
        assert (parameter[~blocked[name]] != before[name][~blocked[name]]).any()
        assert parameter.isfinite().all()


@pytest.mark.parametrize("scale", ["auto", "update", "gradient"])
@pytest.mark.parametrize(
    "kind", [kind for kind in OPTIMIZERS if kind.__name__ not in COUPLED], ids=lambda kind: kind.__name__
)
def test_importance_zero_moves_as_without_a_mask(kind: type[Optimizer], scale: str) -> None:
    """The gradients are given, since those of a real loss depend on the blocked entries too."""
    backbone = backbone_for(kind)
    free = copy.deepcopy(backbone)
    mask, blocked = half_blocked(backbone)
    optimizers = [optimizer_for(kind, b.parameters(), decay=True) for b in (backbone, free)]
    with mask.attach(optimizers[0], scale=scale):
        for _ in range(5):
            for ours, theirs in zip(backbone.parameters(), free.parameters(), strict=True):
                gradient = torch.randn_like(ours)
                ours.grad, theirs.grad = (
                    gradient.to_sparse(1) if kind is SparseAdam else gradient.clone() for _ in range(2)
                )
            for optimizer in optimizers:
                optimizer.step()
    for name, theirs in free.named_parameters():
        assert torch.equal(backbone.get_parameter(name)[~blocked[name]], theirs[~blocked[name]])


@pytest.mark.parametrize("scale", ["auto", "update", "gradient"])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
def test_the_first_task_is_as_without_a_mask(kind: type[Optimizer], scale: str) -> None:
    backbone = backbone_for(kind)
    heads = [nn.Linear(6, 3), nn.Linear(6, 3)]
    heads[1].load_state_dict(heads[0].state_dict())
    free = copy.deepcopy(backbone)
    held = (
        (lambda b, h: b.parameters())
        if kind.__name__ in ("SparseAdam", "Muon")
        else (lambda b, h: [*b.parameters(), *h.parameters()])
    )
    ours = optimizer_for(kind, held(backbone, heads[0]), decay=True)
    theirs = optimizer_for(kind, held(free, heads[1]), decay=True)
    with SoftMask(backbone).attach(ours, head=heads[0], scale=scale):
        train(backbone, heads[0], ours, batches_for(kind), steps=5)
    train(free, heads[1], theirs, batches_for(kind), steps=5)
    assert same(copied(backbone), copied(free))
    assert same(copied(heads[0]), copied(heads[1]))


# ---------------------------------------------------------------------------------------------- the handle


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_the_handle_is_a_context_manager_and_removes_itself(kind: type[Optimizer]) -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), kind(backbone.parameters(), lr=0.1)
    mask.update(everything(backbone))
    with mask.attach(optimizer) as handle:
        assert not moves(backbone, optimizer)
    assert moves(backbone, optimizer)
    handle.remove()
    handle.remove()
    handle = mask.attach(optimizer)
    assert not moves(backbone, optimizer)
    handle.remove()
    handle.remove()
    assert moves(backbone, optimizer)


def test_an_old_handle_does_not_remove_a_new_attachment() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1)
    mask.update(everything(backbone))
    old = mask.attach(optimizer)
    old.remove()
    with mask.attach(optimizer):
        old.remove()
        assert not moves(backbone, optimizer)
        with pytest.raises(RuntimeError, match="already attached"):
            mask.attach(optimizer)


def test_an_error_inside_the_block_removes_it() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1)
    mask.update(everything(backbone))
    with pytest.raises(ZeroDivisionError), mask.attach(optimizer):
        raise ZeroDivisionError
    assert moves(backbone, optimizer)


def test_attaching_twice_is_refused() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1)
    with mask.attach(optimizer):
        with pytest.raises(RuntimeError, match="already attached"):
            mask.attach(optimizer)
        with mask.attach(SGD(backbone.parameters(), lr=0.1)):  # another optimizer is another matter
            pass
    with mask.attach(optimizer):
        pass


def test_an_optimizer_of_something_else_is_refused() -> None:
    head = nn.Linear(6, 3)
    mask = SoftMask(small_backbone())
    optimizer = SGD(head.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter of the backbone or the head"):
        mask.attach(optimizer, head=nn.Linear(6, 3))
    assert optimizer not in mask.attached


@pytest.mark.parametrize("scale", ["Gradient", "", "both", None])
def test_another_scale_is_refused(scale: Any) -> None:
    backbone = small_backbone()
    optimizer = SGD(backbone.parameters(), lr=0.1)
    mask = SoftMask(backbone)
    with pytest.raises(ValueError, match="gradient, update"):
        mask.attach(optimizer, scale=scale)
    with mask.attach(optimizer):
        pass


def test_two_masks_on_one_optimizer() -> None:
    first, second = small_backbone(), small_backbone()
    masks = [SoftMask(first), SoftMask(second)]
    masks[0].update(everything(first))
    optimizer = Adam([*first.parameters(), *second.parameters()], lr=0.1)
    with masks[0].attach(optimizer), masks[1].attach(optimizer):
        for parameter in second.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = copied(second)
        assert not moves(first, optimizer)
        assert not same(copied(second), before)
