"""The extra memory of `consolidate` and `attach`: a few copies of the parameters, whatever the number of heads."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softmask import SoftMask
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
    assert 3 < many < 6.5


def attach_copies(scale: Any, precision: Any = "float32") -> tuple[float, float]:
    """Memory at the peak and after two masked steps of plain SGD, in copies of the parameters."""
    backbone = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300))
    mask = SoftMask(backbone, precision=precision)
    mask.update({name: torch.rand_like(p) for name, p in backbone.named_parameters()})
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1, foreach=False)
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    size = sum(p.nbytes for p in backbone.parameters())
    with Live() as live, mask.attach(optimizer, scale=scale):
        optimizer.step()
        optimizer.step()
        return live.peak / size, live.now / size


def test_attach_copies_the_parameters_for_a_step_or_caches_the_factors() -> None:
    peak, after = attach_copies("update")
    assert 0.9 < peak < 1.2
    assert after < 0.1
    peak, after = attach_copies("gradient")
    assert 0.9 < after <= peak < 1.6
    assert attach_copies("gradient", "uint8")[1] < 0.1
