"""A convolution whose weight gradient is one product of matrices, as a CPU likes it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Convolution(nn.Conv2d):
    """`nn.Conv2d`, with the same values and gradients to rounding.

    On a CPU torch's own gradient of the weights runs at a half to two thirds of the speed of a matrix product. Laying
    out what each output position reads costs little, and then that gradient is a single product.
    """

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not self._as_product(input, weight):
            return super()._conv_forward(input, weight, bias)
        return _Convolve.apply(input, weight, bias, self.stride, self.padding, self.dilation)

    def _as_product(self, x: Tensor, weight: Tensor) -> bool:
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
        below = gradient_below(gradient, x, weight, *ctx.geometry) if ctx.needs_input_grad[0] else None
        rows = as_rows(gradient)
        for_weight = for_bias = None
        if ctx.needs_input_grad[1]:
            taps = (rows.t() @ reads(x, weight.shape[2:], *ctx.geometry)).view(len(weight), *weight.shape[2:], -1)
            for_weight = taps.permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            for_bias = rows.sum(0)
        return below, for_weight, for_bias, None, None, None


def as_rows(image: Tensor) -> Tensor:
    """One row of channels for each position of each image."""
    return image.permute(0, 2, 3, 1).reshape(-1, image.size(1))


def gradient_below(
    gradient: Tensor,
    given: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """From the gradient of a convolution's output to that of its input."""
    geometry = (stride, padding, dilation, False, (0, 0), 1)
    return torch.ops.aten.convolution_backward(gradient, given, weight, None, *geometry, (True, False, False))[0]


def reads(
    given: Tensor,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """What each output position of a convolution reads, a row each: kernel row, kernel column, channel."""
    (tall, wide), (down, across), (row_gap, column_gap), (height, width) = kernel, stride, dilation, padding
    if height or width:
        given = F.pad(given, (width, width, height, height))
    image = given.permute(0, 2, 3, 1)
    windows = image.unfold(1, row_gap * (tall - 1) + 1, down).unfold(2, column_gap * (wide - 1) + 1, across)
    taps = windows[..., ::row_gap, ::column_gap].permute(0, 1, 2, 4, 5, 3)
    return taps.reshape(-1, tall * wide * given.size(1))
