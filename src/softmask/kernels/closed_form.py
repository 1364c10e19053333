"""Standardising gradients (eq. 3) in place, and many at once where they differ only by a factor per row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

ROWS_AT_ONCE = 32  # few enough to stay in a processor's cache while all heads are gone through
NUMBERS_AT_ONCE = 2**16


def require_finite(name: str, *values: Tensor) -> None:
    if not all(bool(value.isfinite().all()) for value in values):
        raise FloatingPointError(
            f"the gradient of {name!r} is not finite: importance cannot be measured; nothing was changed"
        )


def standardised_(gradient: Tensor, name: str) -> Tensor:
    """Eq. 3 in place; a gradient without spread ranks nothing, so it gives zero."""
    low, high = gradient.aminmax()
    require_finite(name, low, high)
    if low == high:
        return gradient.zero_()
    # To the range from 0 to 1 first (eq. 3 depends neither on scale nor on shift): no square leaves float32's range,
    # and a small spread far from zero is not lost.
    largest = torch.maximum(high, -low)
    gradient.div_(largest).sub_(low / largest).div_(high / largest - low / largest)
    gradient.sub_(gradient.mean())
    # In blocks, for no copy of the whole; torch's `std` takes five times longer on a CPU.
    squares = sum(block.square().sum() for block in gradient.view(-1).split(NUMBERS_AT_ONCE))
    return gradient.div_((torch.as_tensor(squares) / (gradient.numel() - 1)).sqrt())


class RowStatistics(NamedTuple):
    """What is enough to know the mean and the spread of a matrix after each row was scaled; in float64."""

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

    The heads' gradients are never made as a whole; the result takes the place of the matrix. A vector is a matrix of
    one column.
    """
    rows = matrix.view(len(matrix), -1)
    statistics = RowStatistics.of(rows)
    require_finite(name, factors, statistics.low, statistics.high)
    slopes, offsets = _standardising(statistics, factors.double(), columns=rows.size(1))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows[start : start + ROWS_AT_ONCE]
        largest = torch.zeros_like(block)
        for slope, offset in zip(slopes[:, start : start + ROWS_AT_ONCE, None], offsets, strict=True):
            torch.maximum(largest, (block * slope).sub_(offset).abs_(), out=largest)
        block.copy_(largest)
    return matrix


def _standardising(statistics: RowStatistics, factors: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """For each head the slope of every row, and the offset, with which `matrix * slope - offset` is standardised."""
    row_means = factors * statistics.mean
    mean = row_means.mean(1, keepdim=True)
    within = (factors.square() * statistics.squared_deviations).sum(1)
    between = columns * (row_means - mean).square().sum(1)
    count = max(2, factors.size(1) * columns)  # a single number has no spread anyway
    spread = ((within + between) / (count - 1)).sqrt()
    ends = torch.stack([factors * statistics.low, factors * statistics.high]).float()
    flat = ends.amax((0, 2)) == ends.amin((0, 2))
    spread = torch.where(flat, torch.inf, spread)
    return (factors / spread[:, None]).float(), (mean.squeeze(1) / spread).float()
