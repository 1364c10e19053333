"""A compiled backbone has the same names and the same importance as the one that it was compiled from."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from softmask import SoftMask
from softmask.learning.networks import alexnet, mlp
from tests.core import oracle
from tests.core.examples import Roundabout, assert_close, copied, small_batches, train

HAS_COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++", "cl"))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _as_wrapper(backend: str) -> Callable[[nn.Module], nn.Module]:
    return lambda backbone: torch.compile(backbone, backend=backend)


def _in_place(backend: str) -> Callable[[nn.Module], nn.Module]:
    def compiled(backbone: nn.Module) -> nn.Module:
        backbone.compile(backend=backend)
        return backbone

    return compiled


def _one_layer(backbone: nn.Module) -> nn.Module:
    backbone.layers[0] = torch.compile(backbone.layers[0], backend="aot_eager")
    return backbone


def _check(compiled: Callable[[nn.Module], nn.Module]) -> None:
    """Train two tasks with the compiled backbone and with the eager one; all must be the same."""
    eager = Roundabout(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    heads = [nn.Linear(6, 3) for _ in range(4)]
    pairs = [(eager, copy.deepcopy(heads)), (compiled(copy.deepcopy(eager)), copy.deepcopy(heads))]
    masks = []
    for backbone, own_heads in pairs:
        mask = SoftMask(backbone)
        for task in (0, 3):  # three old heads: more than share one pass
            optimizer = torch.optim.Adam([*backbone.parameters(), *own_heads[task].parameters()], lr=0.01)
            with mask.attach(optimizer, own_heads[task]):
                train(backbone, own_heads[task], optimizer, small_batches((5, 5)), steps=2)
            mask.consolidate(small_batches(), own_heads[task], own_heads[:task])
        masks.append(mask)
    assert set(masks[1].importance) == {name for name, _ in eager.named_parameters()}
    assert_close(masks[1].importance, masks[0].importance, tolerance=1e-4)
    weights = [list(copied(backbone).values()) for backbone, _ in pairs]
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "compiled", [_as_wrapper("aot_eager"), _in_place("aot_eager"), _one_layer], ids=["wrapper", "in place", "one layer"]
)
def test_a_compiled_backbone(compiled: Callable[[nn.Module], nn.Module]) -> None:
    _check(compiled)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
@pytest.mark.parametrize("compiled", [_as_wrapper("inductor"), _in_place("inductor")], ids=["wrapper", "in place"])
def test_a_backbone_compiled_to_machine_code(compiled: Callable[[nn.Module], nn.Module]) -> None:
    _check(compiled)


def test_compiled_heads() -> None:
    backbone, batches = Roundabout(nn.Linear(4, 6), nn.ReLU()), small_batches()
    heads = [nn.Linear(6, 3) for _ in range(3)]
    expected = oracle.task_importance(backbone, batches, heads[2], heads[:2])
    compiled = [torch.compile(head, backend="aot_eager") for head in heads]
    mask = SoftMask(backbone)
    mask.consolidate(batches, compiled[2], compiled[:2])
    assert_close(mask.importance, expected)


def test_a_mask_of_a_compiled_backbone_loads_into_an_eager_one() -> None:
    eager = Roundabout(nn.Linear(4, 6), nn.ReLU())
    compiled = SoftMask(torch.compile(eager, backend="aot_eager"))
    compiled.consolidate(small_batches(), nn.Linear(6, 3))
    mask = SoftMask(eager)
    mask.load_state_dict(compiled.state_dict())
    assert mask.mean() == compiled.mean() > 0


def test_a_compiled_plain_chain() -> None:
    backbone, batches = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6)), small_batches()
    heads = [nn.Linear(6, 3) for _ in range(3)]
    mask = SoftMask(torch.compile(backbone, backend="aot_eager"))
    mask.consolidate(batches, heads[2], heads[:2])
    assert_close(mask.importance, oracle.task_importance(backbone, batches, heads[2], heads[:2]))


def test_consolidate_leaves_the_compiled_backbone_compiled() -> None:
    calls = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        calls.append(graph)
        return graph.forward

    backbone, batches = Roundabout(nn.Linear(4, 6), nn.ReLU()), small_batches()
    compiled = torch.compile(backbone, backend=backend)
    mask = SoftMask(compiled)
    mask.consolidate(batches, nn.Linear(6, 3), [nn.Linear(6, 3)])
    assert not calls  # importance is measured without the compiler
    compiled(batches[0][0])
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_networks_can_be_compiled(dtype: torch.dtype) -> None:
    backbone = alexnet((3, 32, 32), width=1 / 16).train().to(dtype)
    x = torch.randn(4, 3, 32, 32, dtype=dtype)
    y = torch.compile(backbone, backend="aot_eager")(x)
    y.sum().backward()
    assert y.shape == backbone(x).shape
    assert all(p.grad is not None for p in backbone.parameters())


def test_linear_layers_are_compiled_as_a_whole() -> None:
    backbone, x = mlp((6,), width=1 / 16), torch.randn(4, 6)
    y = torch.compile(backbone, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(y, backbone(x))
