"""Convolution and linear layers that use the fastest matrix product of this processor; all routines agree to rounding.

Measured with batches of 64 (`make bench NAME=products`): on a CPU with AVX-512, oneDNN is faster than torch's own
float32 product of a batch with a weight, and than a convolution's weight gradient as one product. With AVX2 alone
that one product is faster; linear layers were not measured there and use torch's own routine.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


PREFERS_ONEDNN = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_onednn()


def prefers_onednn() -> bool:
    """Whether this processor has AVX-512, where oneDNN is faster, and this build of torch has oneDNN."""
    return PREFERS_ONEDNN


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN should compute the product of this batch with this weight."""
    floats = x.dtype == weight.dtype == torch.float32
    on_cpu = x.device.type == "cpu" and weight.device.type == "cpu"
    return prefers_onednn() and floats and on_cpu and x.dim() == 2 and x.numel() > 0 and x.layout == torch.strided


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.t() + bias`, outside of autograd."""
    if not suits_onednn(x, weight):
        return torch.nn.functional.linear(x, weight, bias)
    # It respects the strides of inputs and weights, but reads a bias as if it were contiguous.
    added = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, added, "none", [], "")
    return product


def linear_backward(gradient: Tensor, weight: Tensor) -> Tensor:
    """`gradient @ weight`, from the gradient of a linear layer's output to that of its input; outside of autograd."""
    return linear_forward(gradient, weight.t())


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


class Linear(nn.Linear):
    """`nn.Linear`, with the same values and gradients to rounding.

    Where oneDNN computes the product there are first gradients only: no `vmap`, forward mode or second gradients.
    """

    def forward(self, input: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling()  # the compiler chooses its own products
        if compiling or torch.is_autocast_enabled(input.device.type) or not suits_onednn(input, self.weight):
            return super().forward(input)
        return _Multiply.apply(input, self.weight, self.bias)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear_forward(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_input = linear_backward(gradient, weight) if ctx.needs_input_grad[0] else None
        # The product that writes a whole weight is no faster with oneDNN.
        for_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return for_input, for_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None
