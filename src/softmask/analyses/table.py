"""What every analysis returns: columns, rows and a caption."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    """A mean over seeds, with its sample standard deviation where there are at least two."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: list[float]) -> Value | None:
        if not values:
            return None
        mean = sum(values) / len(values)
        if len(values) == 1:
            return cls(mean)
        return cls(mean, (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5)


Cell = str | int | float | Value | None


@dataclass(frozen=True)
class Table:
    """Rows in the order in which they are to be read."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
