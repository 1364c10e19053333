"""A pretrained model: protected from the model alone, from inputs, from labelled inputs."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from softmask import KeepAnswers, protect
from softmask.core.sample import KeepSample
from tests.core.examples import copied, same, small_backbone, small_batches
from tests.core.test_protect import fit


def test_the_term_by_hand() -> None:
    """One input and one head: T^2 KL(old || new), and the cross-entropy of its label."""
    backbone, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    backbone.weight.data = torch.tensor([[1.0]])
    head.weight.data = torch.tensor([[2.0], [0.0]])
    keeps = [KeepSample(backbone, torch.ones(1, 1), y, [head]) for y in (None, torch.tensor([1]))]
    assert keeps[0]().item() == pytest.approx(0)
    backbone.weight.data = torch.tensor([[0.0]])
    old, new = torch.tensor([1.0, 0.0]).softmax(0), torch.tensor([0.5, 0.5])
    expected = 4 * (old * (old / new).log()).sum().item()
    assert keeps[0]().item() == pytest.approx(expected)
    assert keeps[1]().item() == pytest.approx(expected + torch.tensor(2.0).log().item())


@pytest.mark.parametrize("x", [torch.randn(7, 4), {"x": torch.randn(7, 4)}], ids=["tensor", "mapping"])
def test_draws_are_kept_with_the_answers(x: Any) -> None:
    backbone, head = small_backbone(), nn.Linear(6, 3)

    def forward(model: nn.Module, x: Any) -> torch.Tensor:
        return model(x["x"] if isinstance(x, dict) else x)

    keep = KeepSample(backbone, x, None, [head], at_once=3, forward=forward)
    keep()
    state = io.BytesIO()
    torch.save(keep.state_dict(), state)
    state.seek(0)
    nn.init.normal_(backbone[0].weight)
    again = KeepSample(backbone, x, None, [head], at_once=3, forward=forward)
    assert again() == 0, "it has just been made"
    again.load_state_dict(torch.load(state, weights_only=True))
    assert torch.equal(again(), keep())


def drift(backbone: nn.Module, start: nn.Module, head: nn.Module, x: torch.Tensor) -> float:
    with torch.no_grad():
        return (head(backbone(x)).softmax(1) - head(start(x)).softmax(1)).abs().mean().item()


def trained(seed: int) -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    """A backbone and a head that tell signs apart, and their data."""
    torch.manual_seed(seed)
    backbone, head, x = small_backbone(0.0), nn.Linear(6, 2), torch.randn(400, 4)
    y = (x[:, 0] > 0).long()
    batches = list(zip(x.split(20), y.split(20), strict=True))
    fit(backbone, head, batches * 10, None)
    return backbone, head, x, y


def elsewhere(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A task whose inputs are unlike the old ones, so that answers to them say little about those."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(1600, 4, generator=draw) + torch.tensor([0.0, 4.0, 0.0, 0.0])
    return list(zip(x.split(20), (x[:, 2] > 0).long().split(20), strict=True))


def test_each_step_of_knowledge_keeps_more() -> None:
    found: dict[str, float] = {"plain": 0, "alone": 0, "inputs": 0, "labels": 0}
    for seed in range(3):
        start, head, x, y = trained(seed)
        for name in found:
            torch.manual_seed(seed)
            backbone, sample = copy.deepcopy(start), {"inputs": x[:60], "labels": (x[:60], y[:60])}.get(name)
            guard = None if name == "plain" else protect(backbone, heads=head, sample=sample)
            fit(backbone, nn.Linear(6, 2), elsewhere(seed), guard)
            found[name] += drift(backbone, start, head, x[100:])
    assert found["plain"] > found["alone"] > found["inputs"], found
    assert found["plain"] > found["alone"] > found["labels"], found


@pytest.mark.parametrize("way", ["answers", "features", "subspace", "spg"])
def test_masks_and_terms_take_a_sample(way: str) -> None:
    start, head, x, y = trained(0)
    moved = []
    for guarded in (False, True):
        torch.manual_seed(1)
        backbone = copy.deepcopy(start)
        guard = protect(backbone, heads=head, ways=(way,), sample=(x[:60], y[:60])) if guarded else None
        fit(backbone, nn.Linear(6, 2), elsewhere(0), guard)
        moved.append(drift(backbone, start, head, x))
    assert moved[1] < moved[0]
    assert guard is not None
    assert len(guard.samples) == (way in ("answers", "features"))


def test_a_model_alone_without_heads_is_protected_from_the_first_task_on() -> None:
    backbone = small_backbone()
    frozen = protect(backbone, ways=("features",), strength=1, pretrained=True)
    before = copied(backbone)
    fit(backbone, nn.Linear(6, 3), small_batches(), frozen)
    assert same(copied(backbone), before)


@pytest.mark.parametrize(
    "given",
    [
        {"pretrained": True},
        {"sample": torch.randn(4, 4)},
        {"ways": ("subspace",), "pretrained": True},
        {"ways": ("spg",), "sample": torch.randn(4, 4), "heads": nn.Linear(6, 3)},
        {"heads": nn.Linear(6, 3), "sample": torch.randn(0, 4)},
        {"heads": nn.Linear(6, 3), "sample": (torch.randn(4, 4), torch.zeros(3).long())},
        {"heads": [nn.Linear(6, 3), nn.Linear(6, 3)], "sample": (torch.randn(4, 4), torch.zeros(4).long())},
        {"precision": "float16"},
    ],
)
def test_nothing_goes_unprotected_in_silence(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"need|empty|precision"):
        protect(small_backbone(), **given)


def test_a_guard_with_a_sample_goes_on_after_a_restart() -> None:
    backbone, head, new = small_backbone(), nn.Linear(6, 3), nn.Linear(6, 3)
    x, batches = torch.randn(40, 4), small_batches()
    results = []
    for stops in (False, True):
        model, fresh = copy.deepcopy(backbone), copy.deepcopy(new)
        guard = protect(model, heads=head, sample=x)
        optimizer = torch.optim.SGD([*model.parameters(), *fresh.parameters()], lr=0.1)
        for number, (inputs, y) in enumerate(batches):
            if stops and number == 2:
                state, weights = guard.state_dict(), copy.deepcopy(model.state_dict())
                nn.init.zeros_(model[0].weight)
                guard = protect(model, heads=head, sample=x)
                guard.load_state_dict(state)
                model.load_state_dict(weights)
            optimizer.zero_grad()
            features = model(inputs)
            (F.cross_entropy(fresh(features), y) + guard(inputs, features)).backward()
            optimizer.step()
        results.append(copied(model))
    assert same(*results)
    with pytest.raises(ValueError, match="sample"):
        protect(model, heads=head).load_state_dict(guard.state_dict())


def test_a_copy_in_two_bytes_answers_alike() -> None:
    torch.manual_seed(0)
    backbone, head = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), nn.Linear(6, 3)
    exact, half = (KeepAnswers(backbone, head, precision=kind) for kind in ("float32", "bfloat16"))  # type: ignore[arg-type]
    assert half.remembered is not None
    assert {p.dtype for p in half.remembered.parameters()} == {torch.bfloat16}
    assert half.remembered[1].num_batches_tracked.dtype == torch.int64  # type: ignore[index]
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    x = torch.randn(32, 4)
    assert half(x).item() < 1e-3, "nothing has moved"
    nn.init.normal_(backbone[0].weight)  # type: ignore[arg-type]
    assert half(x).item() == pytest.approx(exact(x).item(), rel=0.05)
    again = KeepAnswers(backbone, head, precision="bfloat16")
    again.load_state_dict(half.state_dict())
    assert torch.equal(again(x), half(x))
