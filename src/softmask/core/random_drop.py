"""Random draws for dropout that cost a fraction of `bernoulli_` on a CPU: every 64 random bits decide four times.

The bits come from torch's default generator: `torch.manual_seed`, `fork_rng` and the random state hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 2**16  # a decision takes 16 bits: rates are exact to 1 / 65536
LOWEST = -(2**15)  # of 16 bits, read as a signed number

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


def draws_like(x: Tensor) -> Tensor:
    """A random whole number from 16 bits for each entry of `x`, which must be dense; in its memory layout."""
    count = x.numel()
    # From the lowest int64 on: without it, `random_` leaves the sign bit 0.
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
    # 16 bits are exact in float32 but not in a shorter type.
    draws = words.view(torch.int16)[:count].to(torch.promote_types(x.dtype, torch.float32))
    return draws.as_strided(x.size(), x.stride())


def dense(x: Tensor) -> Tensor:
    """`x` itself if it lies in memory without gaps, contiguous or in channels-last format; else a contiguous copy."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()
