"""The quick linear layer against torch's own, with each routine for products."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from softmask.kernels.layers import Linear, _Multiply

from .products import both_routines

onednn = pytest.fixture(scope="module", autouse=True, params=[True, False])(both_routines)


def both(inputs: int, outputs: int, bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    quick, plain = Linear(inputs, outputs, bias=bias), nn.Linear(inputs, outputs, bias=bias)
    plain.load_state_dict(quick.state_dict())
    return quick, plain.double()


def gradients(layer: nn.Linear, x: Tensor) -> list[Tensor]:
    x = x.to(layer.weight.dtype).requires_grad_()
    y = layer(x)
    weights = torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()
    return [y, *torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()])]


@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_values_and_gradients_are_torchs_own(count: int, inputs: int, outputs: int, bias: bool) -> None:
    quick, plain = both(inputs, outputs, bias)
    x = torch.randn(count, inputs, generator=torch.Generator().manual_seed(count))
    for ours, exact in zip(gradients(quick, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_rows_that_lie_apart_in_memory() -> None:
    quick, plain = both(6, 4)
    x = torch.randn(5, 12)[:, ::2]
    torch.testing.assert_close(quick(x).double(), plain(x.double()), rtol=1e-5, atol=1e-5)
    assert quick(torch.randn(6, 3).t()).shape == (3, 4)


@pytest.mark.parametrize("bias", [torch.randn(8)[::2], torch.randn(1).expand(4)], ids=["every second", "one for all"])
def test_a_bias_with_gaps_in_memory(bias: Tensor) -> None:
    quick, plain = both(6, 4)
    x = torch.randn(5, 6)
    expected = functional_call(plain, {"bias": bias.double()}, (x.double(),))
    torch.testing.assert_close(functional_call(quick, {"bias": bias}, (x,)).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(6),
        lambda: torch.randn(2, 3, 6),
        lambda: torch.randn(0, 6),
    ],
    ids=["one", "many dimensions", "none"],
)
def test_other_shapes_go_torchs_way(make: Callable[[], Tensor]) -> None:
    quick, plain = both(6, 4)
    x = make()
    y = quick(x)
    y.sum().backward()
    torch.testing.assert_close(y.double(), plain(x.double()), rtol=1e-5, atol=1e-5)


def test_autocast_and_double_go_torchs_way() -> None:
    quick, _ = both(6, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert quick(torch.randn(2, 6)).dtype == torch.bfloat16
    assert quick.double()(torch.randn(2, 6, dtype=torch.double)).dtype == torch.double


def test_a_frozen_weight_needs_no_gradient_and_a_swapped_one_gets_it() -> None:
    quick, _ = both(6, 4)
    x = torch.randn(3, 6, requires_grad=True)
    quick.requires_grad_(False)
    quick(x).sum().backward()
    assert x.grad is not None
    assert quick.weight.grad is None
    weight = torch.ones(4, 6, requires_grad=True)
    functional_call(quick, {"weight": weight}, (x.detach(),)).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, x.detach().sum(0).expand(4, 6))


def test_the_routine_is_the_one_that_the_processor_prefers(onednn: bool) -> None:
    quick, _ = both(6, 4)
    y = quick(torch.randn(2, 6))
    assert (type(y.grad_fn).__name__ == f"{_Multiply.__name__}Backward") == onednn
