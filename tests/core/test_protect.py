"""The guard: several protections behind one dial."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask import KeepAnswers, SoftMask, SubspaceMask, protect
from softmask.core.protect import Guard
from tests.core.examples import Batch, copied, same, small_backbone, small_batches

EVERY = [("answers", "subspace"), ("answers",), ("features",), ("subspace",), ("spg",), ("answers", "subspace", "spg")]
OPTIMIZERS: list[Any] = [
    lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
]


def fit(
    backbone: nn.Module, head: nn.Module, batches: list[Batch], guard: Guard | None, make: Any = OPTIMIZERS[0]
) -> None:
    optimizer = make([*backbone.parameters(), *head.parameters()])

    def steps() -> None:
        for x, y in batches:
            optimizer.zero_grad()
            features = backbone(x)
            loss = F.cross_entropy(head(features), y)
            if guard:
                loss = loss + guard(x, features)
            loss.backward()
            optimizer.step()

    if guard is None:
        steps()
        return
    with guard.attach(optimizer):
        steps()


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())


# ---------------------------------------------------------------------------------------------- both ends


@pytest.mark.parametrize("ways", EVERY, ids="+".join)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["AdamW", "SGD", "momentum"])
def test_strength_0_is_plain_training_to_the_bit(ways: tuple[str, ...], make: Any) -> None:
    start, heads, results = small_backbone(0.3), [nn.Linear(6, 3), nn.Linear(6, 3)], []
    for guarded in (False, True):
        torch.manual_seed(3)
        backbone, (old, head) = copy.deepcopy(start), copy.deepcopy(heads)
        guard = protect(backbone, strength=0, ways=ways) if guarded else None
        fit(backbone, old, small_batches(), guard, make)
        if guard:
            guard.consolidate(small_batches(), old)
        fit(backbone, head, small_batches(seed=8), guard, make)
        results.append({**copied(backbone), "head": head.weight.detach()})
    assert same(*results)


@pytest.mark.parametrize("ways", EVERY, ids="+".join)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["AdamW", "SGD", "momentum"])
@pytest.mark.parametrize("network", [small_backbone, normalised])
def test_strength_1_is_a_frozen_backbone(ways: tuple[str, ...], make: Any, network: Any) -> None:
    backbone, old, head = network(), nn.Linear(6, 3), nn.Linear(6, 3)
    guard = protect(backbone, strength=1, ways=ways)
    before = copied(backbone)
    fit(backbone, old, small_batches(), guard, make)
    assert not same(copied(backbone), before), "the first task is free"
    guard.consolidate(small_batches(), old)
    before, was = copied(backbone), copied(head)
    fit(backbone, head, small_batches(seed=8), guard, make)
    assert same(copied(backbone), before)
    assert not same(copied(head), was)


def test_known_heads_are_protected_at_once() -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)
    guard = protect(backbone, heads=head, strength=1)
    before = copied(backbone)
    fit(backbone, nn.Linear(6, 3), small_batches(), guard)
    assert same(copied(backbone), before)


# ---------------------------------------------------------------------------------------------- the dial


def drift(backbone: nn.Module, start: nn.Module, head: nn.Module, batches: list[Batch]) -> float:
    """How far old answers on the old task's own data have moved."""
    x = torch.cat([x for x, _ in batches])
    with torch.no_grad():
        return (head(backbone(x)).softmax(1) - head(start(x)).softmax(1)).abs().mean().item()


@pytest.mark.parametrize("ways", [("answers", "subspace"), ("answers",), ("subspace",), ("spg",)], ids="+".join)
def test_more_strength_keeps_more(ways: tuple[str, ...]) -> None:
    """On a task whose inputs are like those of the old one but whose labels are others, over several starts."""
    drifts: list[float] = []
    for strength in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        total = 0.0
        for seed in range(3):
            torch.manual_seed(seed)
            backbone, old, head = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3)
            first, second = small_batches((16,) * 8, seed=seed), small_batches((16,) * 40, seed=100 + seed)
            fit(backbone, old, first * 4, None)
            guard = protect(backbone, strength=strength, ways=ways)
            guard.consolidate(first, old)
            start = copy.deepcopy(backbone)
            fit(backbone, head, second, guard)
            total += drift(backbone, start, old, first)
        drifts.append(total)
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[0] > 1.5 * drifts[2] > 0
    assert drifts[-1] == 0


def test_the_middle_of_the_dial() -> None:
    """SPG as the paper has it, answers that weigh as much as the new task, and a soft subspace."""
    backbone = small_backbone()
    guard = protect(backbone, strength=0.5, ways=("answers", "subspace", "spg"))
    answers, subspace, spg = (guard.parts[way] for way in guard.ways)
    assert isinstance(answers, KeepAnswers)
    assert isinstance(subspace, SubspaceMask)
    assert isinstance(spg, SoftMask)
    assert answers.strength == 1
    assert subspace.strength == pytest.approx(1 / 11)
    importance = torch.rand(5)
    assert torch.equal(spg.effective(importance), importance)


def test_it_is_its_parts_side_by_side() -> None:
    """Against the same loop with `KeepAnswers` and `SubspaceMask` by hand."""
    start, old, head, first, second = (
        small_backbone(),
        nn.Linear(6, 3),
        nn.Linear(6, 3),
        small_batches(),
        small_batches(seed=8),
    )
    guarded = copy.deepcopy(start)
    guard = protect(guarded, strength=0.75, ways=("answers", "subspace"))
    guard.consolidate(first, old)
    fit(guarded, copy.deepcopy(head), second, guard)

    backbone, own = copy.deepcopy(start), copy.deepcopy(head)
    mask, keep = SubspaceMask(backbone, strength=0.3 / 1.3), KeepAnswers(backbone, old, strength=3)
    mask.consolidate(first)
    optimizer = OPTIMIZERS[0]([*backbone.parameters(), *own.parameters()])
    with mask.attach(optimizer):
        for x, y in second:
            optimizer.zero_grad()
            features = backbone(x)
            (F.cross_entropy(own(features), y) + keep(x, features)).backward()
            optimizer.step()
    assert same(copied(guarded), copied(backbone))


# ---------------------------------------------------------------------------------------------- task after task


def test_each_task_is_added() -> None:
    backbone, heads = small_backbone(), [nn.Linear(6, 3) for _ in range(3)]
    guard = protect(backbone, ways=("answers", "subspace", "spg"))
    for number, head in enumerate(heads):
        fit(backbone, head, small_batches(seed=number), guard)
        guard.consolidate(iter(small_batches(seed=number)), head)
        assert len(guard.heads) == number + 1
    answers = guard.parts["answers"]
    assert isinstance(answers, KeepAnswers)
    assert len(answers.heads) == 3
    before = copied(guard.heads[0])
    with torch.no_grad():
        heads[0].weight.zero_()  # whoever reuses a head's module does not change what is protected
    assert same(copied(guard.heads[0]), before)


def test_a_guard_is_detached_at_the_end() -> None:
    backbone, head = normalised(), nn.Linear(6, 3)
    guard = protect(backbone, heads=head, strength=1)
    before = copied(backbone)
    optimizer = OPTIMIZERS[0](backbone.parameters())
    handle = guard.attach(optimizer)
    handle.remove()
    handle.remove()
    head(backbone.train()(torch.randn(8, 4))).sum().backward()
    optimizer.step()
    assert not any(torch.equal(tensor, before[name]) for name, tensor in copied(backbone).items() if "0." in name)
    assert not torch.equal(copied(backbone)["1.running_mean"], before["1.running_mean"])


def test_running_statistics_stand_still_without_a_warning() -> None:
    backbone, old = normalised(), nn.Linear(6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard = protect(backbone, ways=("answers", "subspace", "spg"))
        guard.consolidate(small_batches(), old)
        before = copied(backbone)["1.running_mean"]
        fit(backbone, nn.Linear(6, 3), small_batches(seed=8), guard)
    assert torch.equal(copied(backbone)["1.running_mean"], before)


def test_a_language_model_has_no_heads() -> None:
    model, ids = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7)), torch.randint(7, (3, 4))
    guard = protect(model, ways=("tokens", "subspace"))
    assert guard(ids) == 0
    guard.consolidate([ids])
    with torch.no_grad():
        model[1].weight.add_(0.1 * torch.randn(7, 5))
    assert guard(ids, model(ids)) > 0


@pytest.mark.parametrize("ways", EVERY, ids="+".join)
def test_interrupted_equals_uninterrupted(ways: tuple[str, ...]) -> None:
    start, old, head = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3)
    second, ends = small_batches((5,) * 6, seed=8), []
    for interrupted in (False, True):
        backbone, own = copy.deepcopy(start), copy.deepcopy(head)
        guard = protect(backbone, strength=0.6, ways=ways)
        guard.consolidate(small_batches(), old)
        fit(backbone, own, second[:3], guard)
        if interrupted:
            file = io.BytesIO()
            torch.save(guard.state_dict(), file)
            file.seek(0)
            guard = protect(backbone, strength=0.6, ways=ways)
            guard.load_state_dict(torch.load(file, weights_only=True))
        fit(backbone, own, second[3:], guard)
        guard.consolidate(second, own)
        ends.append((copied(backbone), copied(guard.heads[-1]), guard(second[0][0]).item()))
    assert same(ends[0][0], ends[1][0])
    assert same(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"strength": 1.5}, "strength"),
        ({"strength": float("nan")}, "strength"),
        ({"ways": ("answers", "answers")}, "twice"),
        ({"ways": ("ewc",)}, "ewc"),
        ({"ways": ()}, "at least one"),
        ({"ways": "answers"}, "sequence"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        protect(small_backbone(), **wrong)


@pytest.mark.parametrize("ways", [("answers",), ("spg",)])
def test_a_head_that_is_needed(ways: tuple[str, ...]) -> None:
    guard = protect(small_backbone(), ways=ways)
    with pytest.raises(ValueError, match=ways[0]):
        guard.consolidate(small_batches())
    assert not guard.learned


def test_states_of_another_guard() -> None:
    backbone = small_backbone()
    state: dict[str, Any] = protect(backbone).state_dict()
    for other, named in ((protect(backbone, strength=0.4), "strength"), (protect(backbone, ways=("spg",)), "ways")):
        with pytest.raises(ValueError, match=named):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="version"):
        protect(backbone).load_state_dict({**state, "version": 9})


def test_inputs_of_several_kinds() -> None:
    class Picked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 6)

        def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
            return self.inner(values), values

    backbone, head, x = Picked(), nn.Linear(6, 3), torch.randn(5, 4)
    guard = protect(backbone, forward=lambda module, x: module(**x)[0])
    guard.consolidate([{"values": x}], head)
    assert guard({"values": x}) == 0
