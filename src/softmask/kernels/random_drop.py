"""Random draws for dropout that cost a fraction of `bernoulli_` on a CPU: every 64 random bits decide four times.

The bits come from torch's default generator: `torch.manual_seed`, `fork_rng` and the random state hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 2**16  # a decision takes 16 bits: rates are exact to 1 / 65536
LOWEST = -(2**15)  # of 16 bits, read as a signed number

BITS_OF_ONE = 0x3F80  # in bfloat16

# where_above(x, gate, threshold): x where gate > threshold, else 0. ReLU's own derivative, and the quickest masking.
where_above = torch.ops.aten.threshold_backward


def dropped_levels(rate: float) -> int:
    """How many of the 65536 values of a draw mean "drop"."""
    if not 0 <= rate < 1 or round(rate * LEVELS) == LEVELS:
        raise ValueError(f"a dropout rate lies in [0, 1), not {rate}")
    return round(rate * LEVELS)


def kept_above(dropped: int) -> float:
    """The draws above this number keep."""
    return LOWEST + dropped - 0.5


def words_like(x: Tensor) -> Tensor:
    """16 random bits for each entry of `x`, which must be dense; in its memory layout."""
    count = x.numel()
    # From the lowest int64 on: without it, `random_` leaves the sign bit 0.
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    return words.view(torch.int16)[:count].as_strided(x.size(), x.stride())


def draws_like(x: Tensor) -> Tensor:
    """The same as whole numbers of a floating-point type."""
    # 16 bits are exact in float32 but not in a shorter type.
    return words_like(x).to(torch.promote_types(x.dtype, torch.float32))


def drop(x: Tensor, dropped: int) -> Tensor:
    """A new tensor: `x`, which must be dense, with entries zeroed at random, the others not yet scaled up."""
    if x.dtype == torch.bfloat16:  # without the way through float32, which is twice as wide
        return where_above(x, _bfloat16_gate(x, dropped), 0.0)
    draws = draws_like(x)
    return where_above.grad_input(x, draws, kept_above(dropped), grad_input=draws).to(x.dtype)


def _bfloat16_gate(x: Tensor, dropped: int) -> Tensor:
    """1 where the draw keeps and 0 where it drops, made from whole numbers alone."""
    last_dropped = LOWEST + dropped - 1
    kept = words_like(x).clamp_(last_dropped, last_dropped + 1).sub_(last_dropped)
    return kept.mul_(BITS_OF_ONE).view(torch.bfloat16)


def dense(x: Tensor) -> Tensor:
    """`x` itself if it lies in memory without gaps, contiguous or in channels-last format; else a contiguous copy."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()
