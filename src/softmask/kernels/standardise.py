"""Eq. 3: standardising the gradient of one parameter tensor, and of many heads at once in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

ROWS_AT_ONCE = 32  # few enough to stay in a processor's cache while all heads are visited
ENTRIES_AT_ONCE = 2**16

Range = Callable[[Tensor], tuple[Tensor, Tensor]]
Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def require_finite(name: str, *values: Tensor) -> None:
    if not all(bool(value.isfinite().all()) for value in values):
        raise FloatingPointError(
            f"the gradient of {name!r} is not finite: importance cannot be measured; nothing was changed"
        )


def standardise_(gradient: Tensor, std_mean: Moments = torch.std_mean, value_range: Range = torch.aminmax) -> Tensor:
    """Eq. 3 in place, in float32: `(gradient - mean) / std`, with the unbiased std that the authors use.

    A gradient with zero variance ranks no parameter above another, so it gives zero. `std_mean` and `value_range`
    reduce the whole tensor; a caller that holds one shard of it, or has a faster reduction, passes its own.
    """
    low, high = value_range(gradient)
    if low == high:
        return gradient.zero_()
    # Eq. 3 depends neither on scale nor on shift. Dividing by the largest entry keeps the squares within float32's
    # range; mapping the entries to 0..1 keeps a small spread far from zero from being lost in rounding.
    largest = torch.maximum(high, -low)
    low, high = low / largest, high / largest
    gradient.div_(largest).sub_(low).div_(high - low)
    std, mean = std_mean(gradient)
    return gradient.sub_(mean).div_(std)


def blockwise_std_mean(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """`torch.std_mean` of a contiguous tensor, which takes five times longer on a CPU. Never copies the whole."""
    mean = gradient.mean()
    squares = sum((block - mean).square_().sum() for block in gradient.view(-1).split(ENTRIES_AT_ONCE))
    return (torch.as_tensor(squares) / (gradient.numel() - 1)).sqrt(), mean


class RowStatistics(NamedTuple):
    """Enough to know the mean and the spread of a matrix after each row was scaled; in float64."""

    mean: Tensor
    squared_deviations: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> RowStatistics:
        means, deviations = [], []
        for block in matrix.split(ROWS_AT_ONCE):
            exact = block.double()
            mean = exact.mean(1, keepdim=True)
            means.append(mean.squeeze(1))
            deviations.append(exact.sub_(mean).square_().sum(1))
        return cls(torch.cat(means), torch.cat(deviations), matrix.amin(1).double(), matrix.amax(1).double())


def largest_standardised_(matrix: Tensor, factors: Tensor, name: str) -> Tensor:
    """The largest |standardised gradient| over heads (eq. 3, 4) whose gradients are `factors[head][:, None] * matrix`.

    No head's gradient is ever formed as a whole; the result overwrites the matrix. A vector is a matrix of one column.
    """
    rows = matrix.view(len(matrix), -1)
    statistics = RowStatistics.of(rows)
    require_finite(name, factors, statistics.low, statistics.high)
    slopes, offsets = _slopes_and_offsets(statistics, factors.double(), columns=rows.size(1))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE]
        largest = torch.zeros_like(block)
        for slope, offset in zip(slopes[:, start : start + ROWS_AT_ONCE, None], offsets, strict=True):
            torch.maximum(largest, (block * slope).sub_(offset).abs_(), out=largest)
        block.copy_(largest)
    return matrix


def _slopes_and_offsets(statistics: RowStatistics, factors: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """For each head the slope of every row, and the offset, with which `matrix * slope - offset` is standardised."""
    row_means = factors * statistics.mean
    mean = row_means.mean(1, keepdim=True)
    within = (factors.square() * statistics.squared_deviations).sum(1)
    between = columns * (row_means - mean).square().sum(1)
    count = max(2, factors.size(1) * columns)  # a single entry has no spread
    spread = ((within + between) / (count - 1)).sqrt()
    ends = torch.stack([factors * statistics.low, factors * statistics.high]).float()
    flat = ends.amax((0, 2)) == ends.amin((0, 2))
    spread = torch.where(flat, torch.inf, spread)
    return (factors / spread[:, None]).float(), (mean.squeeze(1) / spread).float()
