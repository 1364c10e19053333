"""The quick convolution against torch's own, over random geometries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call

from softmask.kernels.layers import Convolution

from .products import both_routines

onednn = pytest.fixture(scope="module", autouse=True, params=[True, False])(both_routines)
PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


def both(kernel: tuple[int, int], **geometry: object) -> tuple[Convolution, nn.Conv2d]:
    torch.manual_seed(0)
    quick = Convolution(3, 5, kernel, **geometry)  # type: ignore[arg-type]
    plain = nn.Conv2d(3, 5, kernel, **geometry)  # type: ignore[arg-type]
    plain.load_state_dict(quick.state_dict())
    return quick.double(), plain.double()


def gradients(layer: nn.Conv2d, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    return [
        y,
        *torch.autograd.grad(
            (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum(), [x, *layer.parameters()]
        ),
    ]


@given(PAIR, PAIR, st.tuples(st.integers(0, 2), st.integers(0, 2)), PAIR, st.booleans(), st.booleans())
def test_values_and_gradients_are_torchs_own(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    bias: bool,
    channels_last: bool,
) -> None:
    quick, plain = both(kernel, stride=stride, padding=padding, dilation=dilation, bias=bias)
    x = torch.randn(4, 3, 9, 8, dtype=torch.double)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(gradients(quick, x), gradients(plain, x), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "geometry", [{"padding": "same"}, {"padding_mode": "circular", "padding": 1}, {"groups": 1, "padding": "valid"}]
)
def test_what_it_does_not_know_goes_torchs_way(geometry: dict[str, object]) -> None:
    quick, plain = both((3, 3), **geometry)
    x = torch.randn(2, 3, 8, 8, dtype=torch.double)
    for ours, theirs in zip(gradients(quick, x), gradients(plain, x), strict=True):
        assert torch.equal(ours, theirs)


def test_a_single_image_and_autocast_go_torchs_way() -> None:
    quick = Convolution(3, 5, 3)
    assert quick(torch.randn(3, 8, 8)).shape == (5, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = quick(torch.randn(2, 3, 8, 8))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert quick.weight.grad is not None


def test_a_frozen_weight_needs_no_gradient_and_a_swapped_one_gets_it() -> None:
    quick, plain = both((2, 2))
    x = torch.randn(2, 3, 5, 5, dtype=torch.double, requires_grad=True)
    quick.requires_grad_(False)
    quick(x).sum().backward()
    assert x.grad is not None
    assert quick.weight.grad is None

    def swapped(layer: nn.Conv2d) -> Tensor:
        weight = plain.weight.detach().mul(2).requires_grad_()
        functional_call(layer, {"weight": weight}, (x.detach(),)).pow(2).sum().backward()
        assert weight.grad is not None
        return weight.grad

    torch.testing.assert_close(swapped(quick), swapped(plain))
