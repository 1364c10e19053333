"""Importance in fewer bits: rounded down, 1 only where it was 1, stable, and the mask works as before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from softmask import SoftMask
from softmask.core.compact import MAX_ROUNDING, decode, encode

COMPACT = ["bfloat16", "uint8"]


def values() -> torch.Tensor:
    """All that may go wrong: the ends, their neighbours, every code and its neighbours, and many others."""
    codes = torch.arange(256, dtype=torch.float32) / 255
    near = [torch.nextafter(codes, torch.tensor(bound)) for bound in (0.0, 1.0)]
    random = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    return torch.cat([codes, *near, random, 1 - random * 1e-4, random * 1e-6, torch.tensor([1e-45])])


@pytest.mark.parametrize("precision", COMPACT)
def test_rounded_down_by_little(precision: Any) -> None:
    x = values()
    y = decode(encode(x, precision))
    assert (y <= x).all()
    assert (x - y).max() <= MAX_ROUNDING[precision]
    assert (x - y).max() > MAX_ROUNDING[precision] / 2, "the bound is not too generous"
    assert torch.equal(y == 1, x == 1)
    assert (y[x == 0] == 0).all()


@pytest.mark.parametrize("precision", COMPACT)
def test_reading_and_putting_back_changes_nothing(precision: Any) -> None:
    once = encode(values(), precision)
    assert torch.equal(encode(decode(once), precision), once)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 4))


def taught(precision: Any, threshold: float | None = None) -> tuple[SoftMask, SoftMask]:
    """The same importance in float32 and compact."""
    backbone = network()
    exact, compact = SoftMask(backbone, threshold), SoftMask(copy.deepcopy(backbone), threshold, precision)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        found = {name: torch.rand(p.shape, generator=generator) for name, p in backbone.named_parameters()}
        found["0.weight"][0] = 1
        exact.update(found)
        compact.update(found)
    return exact, compact


@pytest.mark.parametrize("precision", COMPACT)
def test_the_mask_is_the_same_but_for_rounding(precision: Any) -> None:
    exact, compact = taught(precision)
    for name, importance in exact.importance.items():
        assert compact.importance[name].dtype == torch.float32
        assert compact.stored[name].dtype == getattr(torch, precision)
        gap = importance - compact.importance[name]
        assert gap.min() >= 0
        assert gap.max() <= MAX_ROUNDING[precision]
    assert compact.blocked() == exact.blocked() > 0
    assert exact.mean() - MAX_ROUNDING[precision] < compact.mean() <= exact.mean()


@pytest.mark.parametrize("precision", COMPACT)
@pytest.mark.parametrize("scale", ["gradient", "update"])
def test_steps_are_scaled_by_it(precision: Any, scale: Any) -> None:
    exact, compact = taught(precision)
    moved = []
    for mask in (exact, compact):
        optimizer = torch.optim.SGD(mask.backbone.parameters(), lr=0.1)
        before = {name: p.detach().clone() for name, p in mask.parameters().items()}
        with mask.attach(optimizer, scale=scale):
            for _ in range(3):
                optimizer.zero_grad()
                mask.backbone(torch.ones(2, 6)).square().sum().backward()
                optimizer.step()
        moved.append({name: p.detach() - before[name] for name, p in mask.parameters().items()})
        assert (moved[-1]["0.weight"][0] == 0).all(), "what is blocked does not move"
    for name, move in moved[0].items():
        torch.testing.assert_close(moved[1][name], move, atol=0.02, rtol=0.1)


@pytest.mark.parametrize("precision", COMPACT)
def test_it_survives_a_restart_in_any_precision(precision: Any) -> None:
    _, compact = taught(precision)
    state = compact.state_dict()
    assert all(tensor.dtype == getattr(torch, precision) for tensor in state["importance"].values())
    same, wide = SoftMask(network(), precision=precision), SoftMask(network())
    for other in (same, wide):
        other.load_state_dict(state)
        assert all(torch.equal(other.importance[name], importance) for name, importance in compact.importance.items())
        assert other.mean() == compact.mean()
    assert same.stored["0.weight"].data_ptr() != compact.stored["0.weight"].data_ptr()


def test_looking_for_a_name_decodes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = SoftMask(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)), precision="uint8")
    monkeypatch.setattr("softmask.core.compact.decode", lambda code: pytest.fail("it was"))
    assert len(mask.parameters()) == 4
    assert "0.weight" in mask.importance
    assert "elsewhere" not in mask.importance


def test_a_precision_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="float32, bfloat16, uint8"):
        SoftMask(network(), precision="int4")  # type: ignore[arg-type]
