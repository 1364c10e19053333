"""Which entries are the largest: exactly so many, in a few passes over memory."""

from __future__ import annotations

import torch
from torch import Tensor

# A sample of every 61st entry (odd, so that it walks through all rows and columns of a matrix) brackets the threshold.
STRIDE = 61
# Below this size a full selection costs less than the bracket.
SMALL = 2**16
# Half the width of the bracket in standard deviations of the sample's rank: missing it costs time, never correctness.
MARGIN = 4.0


def largest(values: Tensor, count: int) -> Tensor:
    """A mask, 1.0 for the `count` largest entries and 0.0 for the others; of equal ones at the edge, the later stay."""
    flat = values.flatten()
    dropped = flat.numel() - count
    if not 0 <= dropped < flat.numel():
        raise ValueError(f"cannot keep {count} of {flat.numel()} entries")
    smallest, tied, excess = _edge(flat, dropped + 1)
    # Comparing into a float tensor avoids the slow conversion from booleans.
    mask = torch.ge(flat, smallest, out=torch.empty_like(flat))
    mask[tied[:excess]] = 0.0
    return mask.view_as(values)


def _edge(flat: Tensor, rank: int) -> tuple[Tensor, Tensor, int]:
    """The value of this rank (1 is the smallest), the places that hold it, and how many of them rank below."""
    low, high = _bracket(flat, rank)
    below = flat < low
    first = rank - int(torch.count_nonzero(below))  # the rank among those in the bracket
    places = ((flat <= high) ^ below).nonzero().squeeze(1)
    if not 1 <= first <= len(places):  # the sample misled: look at everything
        places, first = torch.arange(len(flat), device=flat.device), rank
    inside = flat[places]
    value = inside.kthvalue(first).values
    return value, places[inside == value], first - 1 - int(torch.count_nonzero(inside < value))


def _bracket(flat: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two values between which the value of this rank almost surely lies."""
    if len(flat) <= SMALL:
        return flat.min(), flat.max()
    sample = flat[::STRIDE]
    share = rank / len(flat)
    spread = MARGIN * (len(sample) * share * (1 - share)) ** 0.5 + 1
    ranks = [share * len(sample) - spread, share * len(sample) + spread]
    low, high = (sample.kthvalue(min(max(1, round(each)), len(sample))).values for each in ranks)
    # At the ends of the scale the sample's own ends are no bound.
    return (flat.min() if ranks[0] < 1 else low), (flat.max() if ranks[1] > len(sample) else high)
