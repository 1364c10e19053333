"""What every analysis returns: columns, rows and a caption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Value:
    """A mean over seeds, with its sample standard deviation where there are at least two."""

    mean: float
    std: float | None = None
    digits: int = 1
    """Decimals that are shown; what is kept has all of them."""
    signed: bool = False
    """Whether a plus is shown: for differences."""
    interval: tuple[float, float] | None = None
    """Where the true mean lies with 95 % confidence."""
    rank: int | None = None
    """1 for the best of what it is compared with, 2 for the second."""
    paper: float | None = None
    """What the paper gives for the same."""
    footnotes: tuple[str, ...] = ()
    count: int = 1
    """How many seeds are behind it."""
    partial: bool = False
    """Whether it lacks seeds that were run: it is compared with nothing, since those left may be the lucky ones."""

    @classmethod
    def of(cls, values: Sequence[float], digits: int = 1, signed: bool = False) -> Value | None:
        if not values:
            return None
        mean = sum(values) / len(values)
        if len(values) == 1:
            return cls(mean, digits=digits, signed=signed)
        std = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        return cls(mean, std, digits, signed, count=len(values))

    def number(self, value: float) -> str:
        """Another number in the same form; never a minus before nothing."""
        return f"{round(value, self.digits) + 0.0:{'+' if self.signed else ''}.{self.digits}f}"

    @property
    def difference(self) -> str | None:
        """Ours minus the paper's, with its sign."""
        if self.paper is None:
            return None
        return f"{round(self.mean - self.paper, self.digits) + 0.0:+.{self.digits}f}"


Cell = str | int | float | Value | None


@dataclass(frozen=True)
class Table:
    """Rows in the order in which they are to be read."""

    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    labels: int = 1
    """How many columns at the left say what a row is about."""

    def footnotes(self) -> list[str]:
        """The footnotes of all cells, each once, in the order in which they are met."""
        return list(dict.fromkeys(text for cell in self.cells() if isinstance(cell, Value) for text in cell.footnotes))

    def cells(self) -> Iterator[Cell]:
        return (cell for row in self.rows for cell in row)

    def shown_columns(self) -> list[int]:
        """Columns with something in them; all of them where there is no row."""
        return [i for i in range(len(self.columns)) if not self.rows or any(row[i] is not None for row in self.rows)]

    def is_numeric(self, column: int) -> bool:
        return any(isinstance(row[column], (int, float, Value)) for row in self.rows)
