"""The extra memory of `consolidate` and `attach`: a few copies of the parameters, whatever the number of heads."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softmask import SoftMask, SubspaceMask
from softmask.core import moving
from softmask.kernels import cross_head
from tests.core.examples import Roundabout


def storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside and still alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {
            leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                place, size = storage.data_ptr(), storage.nbytes()
                if place and place not in given and place not in self.known:
                    self.known.add(place)
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.gone, place, size)
        return result

    def gone(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


def extra_copies(kind: type[nn.Sequential] | type[Roundabout], heads: int) -> float:
    """The most memory that `consolidate` took at once, in copies of the backbone."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 64)]
    backbone = kind(*layers)
    size = sum(p.nbytes for p in backbone.parameters())
    mask, batches = SoftMask(backbone), [(torch.randn(4, 64), torch.randint(3, (4,))) for _ in range(3)]
    made = [nn.Linear(64, 3) for _ in range(heads + 1)]
    with Live() as live:
        mask.consolidate(batches, made[0], previous_heads=made[1:])
    return live.peak / size


@pytest.mark.parametrize("kind", [nn.Sequential, Roundabout])
def test_a_few_copies_whatever_the_number_of_heads(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_head, "SMALL", 0)  # a backbone as small as this one may take more
    few, many = extra_copies(kind, 4), extra_copies(kind, 24)
    assert many < few + 0.3
    assert 3 < many < 4.4


@pytest.mark.parametrize("kind", [nn.Sequential, Roundabout])
def test_without_old_heads_one_sum_of_gradients(kind: Any) -> None:
    """And the new importance, which takes the place of the old one. The rest is work on a single layer."""
    assert extra_copies(kind, 0) < 2.3


def step_copies(make: Any, scale: Any, precision: Any, threshold: float | None = None) -> tuple[float, float]:
    """What a masked step takes at its peak beyond a bare one, and leaves behind, in copies of one of eight layers."""
    backbone = nn.Sequential(*(nn.Linear(300, 300, bias=False) for _ in range(8)))
    mask = SoftMask(backbone, threshold, precision)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    optimizer = make(backbone.parameters())
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # makes the state
    with Live() as bare:
        optimizer.step()
    with mask.attach(optimizer, scale=scale):
        optimizer.step()  # measures the mean of the importance, once
        with Live() as masked:
            optimizer.step()
    size = backbone[0].weight.nbytes
    return (masked.peak - bare.peak) / size, masked.now / size


@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "uint8"])
@pytest.mark.parametrize(("kind", "scale"), [("AdamW", "update"), ("SGD", "update"), ("SGD", "gradient")])
def test_a_step_copies_one_layer_at_a_time(
    kind: str, scale: Any, precision: Any, threshold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the importance itself. Scaled gradients need no copy at all."""
    monkeypatch.setattr(moving, "CACHED", 2**12)
    peak, after = step_copies(
        lambda p: getattr(torch.optim, kind)(p, lr=0.1, foreach=False), scale, precision, threshold
    )
    assert peak < (0.3 if scale == "gradient" else 1.3)
    assert after == 0


def test_an_optimizer_that_nobody_knows_needs_a_copy_of_everything() -> None:
    class Own(torch.optim.SGD):
        """Might do anything."""

    peak, after = step_copies(lambda p: Own(p, lr=0.1, foreach=False), "auto", "float32")
    assert 7.9 < peak < 9.1
    assert after == 0


def test_measuring_directions_frees_layer_by_layer() -> None:
    """New sums beside what is remembered, and work on one layer: not a further copy of all moments."""
    backbone = nn.Sequential(*(nn.Linear(120, 120, bias=False) for _ in range(8)))
    mask = SubspaceMask(backbone)
    with Live() as live:
        mask.consolidate([torch.randn(4, 120)])
    size = 8 * 120 * 120
    assert live.now < 8.2 * size
    assert live.peak < 12 * size
