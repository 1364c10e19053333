"""Dropout that costs a fraction of `bernoulli_` on a CPU, alone and fused with ReLU and a 2x2 max-pool.

Every 64 random bits decide four entries. They come from torch's default generator, so `torch.manual_seed`, `fork_rng`
and the random state work as usual. The fused operations have the distribution of `nn.ReLU`, `nn.Dropout` and
`nn.MaxPool2d(2)` one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEVELS = 2**16  # a decision takes 16 bits: dropout rates are exact to 1 / 65536
LOWEST = -(2**15)  # of 16 bits, read as a signed integer

BITS_OF_ONE = 0x3F80  # in bfloat16

# where_above(x, gate, threshold): x where gate > threshold, else 0. ReLU's own derivative, and the fastest masking.
where_above = torch.ops.aten.threshold_backward


def dropped_levels(rate: float) -> int:
    """The number of the 65536 random values that mean "drop"."""
    if not 0 <= rate < 1 or round(rate * LEVELS) == LEVELS:
        raise ValueError(f"a dropout rate must be in [0, 1), not {rate}")
    return round(rate * LEVELS)


def kept_above(dropped: int) -> float:
    """Draws above this value keep their entry."""
    return LOWEST + dropped - 0.5


def random_int16_like(x: Tensor) -> Tensor:
    """16 random bits for each entry of `x`, which must be dense; in its memory layout."""
    count = x.numel()
    # From the lowest int64 on: by default `random_` leaves the sign bit 0.
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    return words.view(torch.int16)[:count].as_strided(x.size(), x.stride())


def draws_like(x: Tensor) -> Tensor:
    """The same random values in a floating-point type."""
    # 16 bits are exact in float32 but not in a shorter type.
    return random_int16_like(x).to(torch.promote_types(x.dtype, torch.float32))


def drop(x: Tensor, dropped: int) -> Tensor:
    """A new tensor: `x`, which must be dense, with entries zeroed at random and the others not yet scaled up."""
    if x.dtype == torch.bfloat16:  # avoids float32, which is twice as wide
        return where_above(x, _bfloat16_gate(x, dropped), 0.0)
    draws = draws_like(x)
    return where_above.grad_input(x, draws, kept_above(dropped), grad_input=draws).to(x.dtype)


def _bfloat16_gate(x: Tensor, dropped: int) -> Tensor:
    """1 where the draw keeps and 0 where it drops, by integer arithmetic alone."""
    last_dropped = LOWEST + dropped - 1
    kept = random_int16_like(x).clamp_(last_dropped, last_dropped + 1).sub_(last_dropped)
    return kept.mul_(BITS_OF_ONE).view(torch.bfloat16)


def dense(x: Tensor) -> Tensor:
    """`x` itself if it has no gaps in memory, contiguous or in channels-last format; else a contiguous copy."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()


def relu_dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """`dropout(relu(x), rate)`."""
    dropped = dropped_levels(rate) if training else 0
    if torch.compiler.is_compiling():  # a compiler fuses standard layers by itself
        return F.dropout(F.relu(x), dropped / LEVELS, training)
    return F.relu(x) if dropped == 0 else _ReluDropout.apply(x, dropped)


def relu_dropout_pool(x: Tensor, rate: float, training: bool) -> Tensor:
    """`max_pool2d(dropout(relu(x), rate), 2)`."""
    dropped = dropped_levels(rate) if training else 0
    if torch.compiler.is_compiling():
        return F.max_pool2d(F.dropout(F.relu(x), dropped / LEVELS, training), 2)
    # Max-pool and ReLU commute, and the pooled image is four times smaller.
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
    """Pools columns, then rows; the backward pass only needs to know which of two neighbours was larger.

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
    """Passes the gradient to the larger of each pair, to the first of equals."""
    first, second = _pairs(out, dim)
    where_above.grad_input(grad, second_over_first, 0.0, grad_input=second)
    torch.sub(grad, second, out=first)
    out.narrow(dim, out.size(dim) // 2 * 2, out.size(dim) % 2).zero_()
    return out
