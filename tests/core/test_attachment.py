"""A mask on an optimizer: what it protects under every optimizer of torch, and when it scales what."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Muon, Optimizer, RMSprop, SparseAdam

from softmask import SoftMask
from tests.core.examples import copied, same, small_backbone, small_batches, train

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
    if kind is Muon:
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


def half_blocked(backbone: nn.Module) -> tuple[SoftMask, dict[str, Tensor]]:
    """A mask with importance 1 or 0, and where it is 1."""
    mask = SoftMask(backbone)
    blocked = {name: torch.rand_like(p) < 0.5 for name, p in backbone.named_parameters()}
    mask.update({name: where.float() for name, where in blocked.items()})
    return mask, blocked


# ---------------------------------------------------------------------------------------------- every optimizer


def test_the_list_of_optimizers_is_complete() -> None:
    assert {SGD, Adam, AdamW, RMSprop, LBFGS, Muon, SparseAdam} <= set(OPTIMIZERS)


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
        if kind in (SparseAdam, Muon)
        else (lambda b, h: [*b.parameters(), *h.parameters()])
    )
    ours = optimizer_for(kind, held(backbone, heads[0]), decay=True)
    theirs = optimizer_for(kind, held(free, heads[1]), decay=True)
    with SoftMask(backbone).attach(ours, head=heads[0], scale=scale):
        train(backbone, heads[0], ours, batches_for(kind), steps=5)
    train(free, heads[1], theirs, batches_for(kind), steps=5)
    assert same(copied(backbone), copied(free))
    assert same(copied(heads[0]), copied(heads[1]))


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


def _everything(backbone: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones_like(p) for name, p in backbone.named_parameters()}


@pytest.mark.parametrize(("scale", "protects"), [("auto", True), ("update", True), ("gradient", False)])
def test_momentum_from_before_cannot_move_what_is_blocked(scale: str, protects: bool) -> None:
    backbone, head, optimizer, mask = _with_momentum()
    train(backbone, head, optimizer, small_batches(), steps=3)
    mask.update(_everything(backbone))
    before = copied(backbone)
    with mask.attach(optimizer, scale=scale):
        train(backbone, head, optimizer, small_batches(), steps=3)
    assert same(copied(backbone), before) is protects


@pytest.mark.parametrize("how", ["update", "in place", "replaced", "loaded", "threshold"])
def test_importance_that_changes_in_the_middle_of_an_attachment(how: str) -> None:
    backbone, head, optimizer, mask = _with_momentum()
    mask.threshold = 2.0 if how == "threshold" else None
    if how == "threshold":
        mask.update(_everything(backbone))
    other = SoftMask(backbone)
    other.update(_everything(backbone))
    with mask.attach(optimizer):
        train(backbone, head, optimizer, small_batches(), steps=3)
        if how == "update":
            mask.update(_everything(backbone))
        elif how == "in place":
            for tensor in mask.importance.values():
                tensor.fill_(1)
        elif how == "replaced":
            mask.importance = _everything(backbone)
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
    mask.update(_everything(backbone))
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
    mask.update(_everything(backbone))
    x, y = small_batches()[0]
    F.cross_entropy(head(backbone(x)), y).backward()
    backbone[0].requires_grad_(False)
    before = copied(backbone)
    with mask.attach(optimizer):
        optimizer.step()
    assert same(copied(backbone), before)


# ---------------------------------------------------------------------------------------------- the handle


def _moves(backbone: nn.Module, optimizer: Optimizer) -> bool:
    before = copied(backbone)
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return not same(copied(backbone), before)


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_the_handle_is_a_context_manager_and_removes_itself(kind: type[Optimizer]) -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), kind(backbone.parameters(), lr=0.1)
    mask.update(_everything(backbone))
    with mask.attach(optimizer) as handle:
        assert not _moves(backbone, optimizer)
    assert _moves(backbone, optimizer)
    handle.remove()
    handle.remove()
    handle = mask.attach(optimizer)
    assert not _moves(backbone, optimizer)
    handle.remove()
    handle.remove()
    assert _moves(backbone, optimizer)


def test_an_old_handle_does_not_remove_a_new_attachment() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1)
    mask.update(_everything(backbone))
    old = mask.attach(optimizer)
    old.remove()
    with mask.attach(optimizer):
        old.remove()
        assert not _moves(backbone, optimizer)
        with pytest.raises(RuntimeError, match="already attached"):
            mask.attach(optimizer)


def test_an_error_inside_the_block_removes_it() -> None:
    backbone = small_backbone()
    mask, optimizer = SoftMask(backbone), SGD(backbone.parameters(), lr=0.1)
    mask.update(_everything(backbone))
    with pytest.raises(ZeroDivisionError), mask.attach(optimizer):
        raise ZeroDivisionError
    assert _moves(backbone, optimizer)


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
    masks[0].update(_everything(first))
    optimizer = Adam([*first.parameters(), *second.parameters()], lr=0.1)
    with masks[0].attach(optimizer), masks[1].attach(optimizer):
        for parameter in second.parameters():
            parameter.grad = torch.ones_like(parameter)
        before = copied(second)
        assert not _moves(first, optimizer)
        assert not same(copied(second), before)


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
    mask.update(_everything(backbone))
    with mask.attach(optimizer):
        optimizer.add_param_group({"params": backbone[3].parameters()})
        assert not _moves(backbone, optimizer)


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
@pytest.mark.parametrize(("threshold", "stays"), [(-0.1, True), (1.0, False)])
def test_hard_masks_at_their_bounds(threshold: float, stays: bool, scale: str) -> None:
    """Below 0 backbone and head are constant to the bit; 1 is plain training to the bit."""
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
        mask.update(_everything(backbone))
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
