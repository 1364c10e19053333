"""A convolution whose weight gradient is a single matrix product, which is fast on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softmask.kernels.products import prefers_onednn


class Convolution(nn.Conv2d):
    """`nn.Conv2d`, with the same values and gradients to rounding.

    On a CPU without AVX-512 torch's own weight gradient runs at a half to two thirds of the speed of a matrix product.
    Laying out the patches that the output positions read costs little, and then that gradient is a single product.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._as_product(input, weight):
            return super()._conv_forward(input, weight, bias)
        return _Convolve.apply(input, weight, bias, *geometry(self))

    def _as_product(self, x: Tensor, weight: Tensor) -> bool:
        if torch.compiler.is_compiling():
            return False
        plain = self.groups == 1 and self.padding_mode == "zeros" and not isinstance(self.padding, str)
        on_cpu = x.device.type == "cpu" and x.dim() == 4 and x.dtype == weight.dtype
        return plain and on_cpu and weight.requires_grad and not torch.is_autocast_enabled("cpu")


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *geometry: tuple[int, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = geometry
        stride, padding, dilation = geometry
        return F.conv2d(x, weight, bias, stride, padding, dilation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_input = input_gradient(gradient, x, weight, *ctx.geometry) if ctx.needs_input_grad[0] else None
        for_weight = weight_gradient(gradient, x, weight, *ctx.geometry) if ctx.needs_input_grad[1] else None
        for_bias = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return for_input, for_weight, for_bias, None, None, None


def weight_gradient(gradient: Tensor, given: Tensor, weight: Tensor, *geometry: tuple[int, ...]) -> Tensor:
    """From the gradient of a convolution's output to that of its weight."""
    if prefers_onednn():
        return _backward(gradient, given, weight, geometry, (False, True, False))[1]
    taps = as_rows(gradient).t() @ patches_of(given, weight.shape[2:], *geometry)
    return taps.view(len(weight), *weight.shape[2:], -1).permute(0, 3, 1, 2)


def geometry(layer: nn.Conv2d) -> tuple[tuple[int, ...], ...]:
    """Stride, padding and dilation of a layer with numeric padding."""
    assert not isinstance(layer.padding, str)
    return layer.stride, layer.padding, layer.dilation


def as_rows(image: Tensor) -> Tensor:
    """One row of channels for each position of each image."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.size(1))


def input_gradient(
    gradient: Tensor,
    given: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """From the gradient of a convolution's output to that of its input."""
    return _backward(gradient, given, weight, (stride, padding, dilation), (True, False, False))[0]


def _backward(
    gradient: Tensor, given: Tensor, weight: Tensor, geometry: tuple[tuple[int, ...], ...], wanted: tuple[bool, ...]
) -> tuple[Tensor, ...]:
    """torch's own gradients of input, weight and bias, as far as they are wanted."""
    whole = (*geometry, False, (0, 0), 1)
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(gradient, given, weight, None, *whole, wanted)
    return gradients


def patches_of(
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """The patch that each output position of a convolution reads, one row each: kernel row, kernel column, channel."""
    (tall, wide), (down, across), (row_gap, column_gap), (height, width) = kernel, stride, dilation, padding
    if height or width:
        given = F.pad(given, (width, width, height, height))
    image = given.permute(0, 2, 3, 1)
    windows = image.unfold(1, row_gap * (tall - 1) + 1, down).unfold(2, column_gap * (wide - 1) + 1, across)
    taps = windows[..., ::row_gap, ::column_gap].permute(0, 1, 2, 4, 5, 3)
    return taps.reshape(-1, tall * wide * given.size(1))
