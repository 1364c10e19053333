"""Parameters that get other names or shapes, or go: importance goes along, or an error says what would be lost."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from softmask import SoftMask
from tests.core.examples import small_batches


class Adapted(nn.Module):
    """A frozen layer inside another, with something small beside it, as adapters do it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer, self.adapter = layer, nn.Linear(layer.in_features, layer.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.adapter(x)


def wrap(backbone: nn.Sequential) -> None:
    backbone[0] = nn.Sequential(backbone[0], nn.Dropout())


def adapt(backbone: nn.Sequential) -> None:
    backbone[0] = Adapted(backbone[0])


def pruned(backbone: nn.Sequential) -> None:
    prune.l1_unstructured(backbone[0], "weight", amount=2)


def blocked_backbone(**options: Any) -> tuple[nn.Sequential, SoftMask]:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    mask = SoftMask(backbone, **options)
    mask.update({name: torch.ones_like(p) for name, p in backbone.named_parameters()})
    return backbone, mask


@pytest.mark.parametrize("precision", ["float32", "uint8"])
@pytest.mark.parametrize("change", [wrap, adapt, pruned])
def test_importance_goes_along_with_its_parameter(change: Callable[[nn.Sequential], None], precision: Any) -> None:
    backbone, mask = blocked_backbone(precision=precision)
    weight, bias = backbone[0].weight, backbone[0].bias
    before = weight.detach().clone(), bias.detach().clone()
    change(backbone)
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=0.1)
    with mask.attach(optimizer):
        backbone(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    assert torch.equal(weight, before[0])
    assert torch.equal(bias, before[1])
    names = dict(backbone.named_parameters())
    assert mask.importance.keys() == names.keys()
    assert {name for name, tensor in mask.importance.items() if tensor.all()} == {
        name for name, parameter in names.items() if parameter is weight or parameter is bias
    }


def test_so_it_does_in_a_copy_and_after_loading() -> None:
    _, mask = blocked_backbone()
    again = copy.deepcopy(mask)
    again.parameters()
    wrap(again.backbone)
    assert set(again.parameters()) == {"0.0.weight", "0.0.bias"}
    assert again.blocked() == 1
    fresh = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    loaded = SoftMask(fresh)
    loaded.load_state_dict(mask.state_dict())
    wrap(fresh)
    assert set(loaded.parameters()) == {"0.0.weight", "0.0.bias"}
    assert loaded.blocked() == 1
    assert set(mask.parameters()) == {"0.weight", "0.bias"}


class Holding(nn.Module):
    """Calls a part of its own `module`, as data parallelism does."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.module(x)
        return x @ self.weight if hasattr(self, "weight") else x


def test_a_new_parameter_does_not_inherit_the_importance_of_another() -> None:
    backbone = Holding()
    mask = SoftMask(backbone)
    mask.update({"weight": torch.ones(3, 3)})
    backbone.weight = nn.Parameter(torch.randn(3, 3))
    assert set(mask.parameters()) == {"module.weight", "weight"}
    assert mask.importance["module.weight"].all()
    assert not mask.importance["weight"].any()


def normalised(backbone: nn.Sequential) -> None:
    parametrizations.weight_norm(backbone[0])


def replaced(backbone: nn.Sequential) -> None:
    backbone[0] = nn.Linear(4, 7)


@pytest.mark.parametrize("change", [normalised, replaced])
def test_what_would_be_lost_is_told_before_anything_moves(change: Callable[[nn.Sequential], None]) -> None:
    backbone, mask = blocked_backbone()
    old = torch.optim.Adam(backbone.parameters())
    handle = mask.attach(old)
    change(backbone)
    optimizer = torch.optim.Adam(backbone.parameters())
    before = [p.detach().clone() for p in backbone.parameters()]
    kept = dict(mask.importance)
    with pytest.raises(ValueError, match=r"'0\.weight'.*del mask\.importance"):
        mask.attach(optimizer)
    with pytest.raises(ValueError, match=r"'0\.weight'"):
        mask.consolidate(small_batches(), nn.Linear(6, 3))
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(ValueError, match=r"'0\.weight'"):
        old.step()
    handle.remove()
    assert all(torch.equal(p, was) for p, was in zip(backbone.parameters(), before, strict=True))
    assert all(mask.importance[name] is tensor for name, tensor in kept.items())


def test_what_is_taken_out_on_purpose_starts_anew() -> None:
    backbone, mask = blocked_backbone()
    replaced(backbone)
    del mask.importance["0.weight"], mask.importance["0.bias"]
    assert mask.parameters()["0.weight"].shape == (7, 4)
    assert mask.mean() == 0


def test_nothing_is_lost_where_nothing_was_important() -> None:
    backbone = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
    mask = SoftMask(backbone)
    normalised(backbone)
    assert mask.parameters().keys() == dict(backbone.named_parameters()).keys() == mask.importance.keys()


def test_a_lazy_backbone_is_told_to_see_a_batch_first() -> None:
    backbone = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="lazy"):
        SoftMask(backbone)
    backbone(torch.randn(2, 4))
    assert SoftMask(backbone).mean() == 0


def test_a_replaced_parameter_that_was_important_is_told_once() -> None:
    backbone, mask = blocked_backbone()
    backbone[0].weight = nn.Parameter(torch.zeros_like(backbone[0].weight))
    optimizer = torch.optim.Adam(backbone.parameters())
    with pytest.warns(UserWarning, match=r"0\.weight"):
        mask.attach(optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask.parameters()


def test_a_replaced_parameter_without_importance_is_not_told() -> None:
    backbone = nn.Sequential(nn.Linear(4, 6))
    mask = SoftMask(backbone)
    backbone[0].weight = nn.Parameter(torch.zeros_like(backbone[0].weight))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mask.parameters()
