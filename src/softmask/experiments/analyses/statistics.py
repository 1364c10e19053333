"""Intervals and slopes over few seeds."""

from __future__ import annotations

from collections.abc import Sequence

from softmask.experiments.analyses.table import Value

CONFIDENCE = 0.95


def with_interval(values: Sequence[float], digits: int = 1) -> Value | None:
    """The mean of differences with Student's interval; without one where there is a single value."""
    if not values:
        return None
    count, mean = len(values), sum(values) / len(values)
    if count == 1:
        return Value(mean, digits=digits, signed=True)
    deviation = (sum((value - mean) ** 2 for value in values) / (count - 1)) ** 0.5
    reach = student(count - 1) * deviation / count**0.5
    return Value(mean, digits=digits, signed=True, interval=(mean - reach, mean + reach))


def student(freedom: int) -> float:
    """How many standard errors to each side hold the true mean with 95 % confidence."""
    from scipy.special import stdtrit  # a tenth of a second that only this needs

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def slope(values: Sequence[float]) -> float | None:
    """Least squares over places 0, 1, 2, ...: the change from one to the next. None for a single value."""
    count = len(values)
    if count < 2:
        return None
    middle, mean = (count - 1) / 2, sum(values) / count
    spread = sum((place - middle) ** 2 for place in range(count))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / spread
