"""ReLU and dropout in one step, with or without the 2x2 max-pool that follows.

The same distribution as `nn.ReLU`, `nn.Dropout` and `nn.MaxPool2d(2)` one after the other, in a fraction of the time
on a CPU, where drawing one Bernoulli number at a time costs more than the convolutions.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from softmask.kernels.random_drop import LEVELS, dense, drop, dropped_levels, where_above


def relu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`dropout(relu(x), rate)`."""
    dropped = dropped_levels(rate) if training else 0
    if torch.compiler.is_compiling():  # a compiler joins standard layers by itself
        return F.dropout(F.relu(x), dropped / LEVELS, training)
    return F.relu(x) if dropped == 0 else _ReluDropout.apply(x, dropped)


def relu_dropout_pool(x: Tensor, rate: float, training: bool) -> Tensor:
    """`max_pool2d(dropout(relu(x), rate), 2)`."""
    dropped = dropped_levels(rate) if training else 0
    if torch.compiler.is_compiling():
        return F.max_pool2d(F.dropout(F.relu(x), dropped / LEVELS, training), 2)
    # Max-pool and ReLU may change places, and the pooled image is four times smaller.
    return F.relu(F.max_pool2d(x, 2)) if dropped == 0 else _ReluDropoutPool.apply(x, dropped)


class _ReluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        ctx.scale = LEVELS / (LEVELS - dropped)
        y = drop(dense(x), dropped).relu_().mul_(ctx.scale)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return where_above(grad, y, 0.0).mul_(ctx.scale), None


class _ReluDropoutPool(torch.autograd.Function):
    """Pools columns, then rows; what must be known later is only which of two neighbours was larger.

    ReLU and the factor 1 / (1 - rate) are applied to the pooled image, four times smaller. Where neighbours are
    equal, the first one gets the gradient, as in torch's own pool: so columns first, since a window is read by rows.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int) -> Tensor:
        ctx.scale = LEVELS / (LEVELS - dropped)
        y = drop(dense(x), dropped)
        left, right = _pairs(y, -1)
        wider = torch.maximum(left, right)
        upper, lower = _pairs(wider, -2)
        pooled = torch.maximum(upper, lower).relu_().mul_(ctx.scale)
        ctx.save_for_backward(right - left, lower - upper, pooled)
        # y itself is not kept: the gradient only needs its shape and layout.
        ctx.shape, ctx.channels_last = y.shape, not y.is_contiguous()
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        right_over_left, lower_over_upper, pooled = ctx.saved_tensors
        grad = where_above(grad, pooled, 0.0).mul_(ctx.scale)
        wider = _unpool(grad, lower_over_upper, torch.empty_like(right_over_left), -2)
        layout = torch.channels_last if ctx.channels_last else torch.contiguous_format
        full = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=layout)
        return _unpool(wider, right_over_left, full, -1), None


def _pairs(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Every first and every second entry along `dim`; an odd last one is left out."""
    even = x.narrow(dim, 0, x.size(dim) // 2 * 2)
    return (even[..., 0::2], even[..., 1::2]) if dim == -1 else (even[..., 0::2, :], even[..., 1::2, :])


def _unpool(grad: Tensor, second_over_first: Tensor, out: Tensor, dim: int) -> Tensor:
    """Hands the gradient to the larger of each pair, to the first of equals."""
    first, second = _pairs(out, dim)
    where_above.grad_input(grad, second_over_first, 0.0, grad_input=second)
    torch.sub(grad, second, out=first)
    out.narrow(dim, out.size(dim) // 2 * 2, out.size(dim) % 2).zero_()
    return out
