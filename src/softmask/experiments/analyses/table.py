"""A table is a DataFrame with a caption and notes; its cells are text, numbers, or means over seeds (`Value`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

CONFIDENCE = 0.95
SEEDS_FOR_INTERVAL = 3
"""Two seeds give meaningless intervals: [-1.9, -1.9] if they agree by chance, otherwise hundreds of points."""
INTERVALS = f"Student's 95 % interval from {SEEDS_FOR_INTERVAL} seeds on"


@dataclass(frozen=True)
class Value:
    """A mean over seeds, with its sample standard deviation where there are at least two."""

    mean: float
    std: float | None = None
    digits: int = 1
    """Decimals shown; all of them are kept."""
    signed: bool = False
    """Whether a plus sign is shown: for differences."""
    interval: tuple[float, float] | None = None
    """95 % confidence interval of the mean."""
    rank: int | None = None
    """1 for the best of the column, 2 for the second best."""
    paper: float | None = None
    """The published number."""
    footnotes: tuple[str, ...] = ()
    count: int = 1
    """Number of seeds."""
    partial: bool = False
    """Whether results of some seeds are missing. Such a value is not ranked, since the remaining seeds may be
    biased."""
    at_chance: bool = False
    """Whether an accuracy is not above chance by more than noise."""
    source: str = "paper"
    """Where the published number is from."""

    @classmethod
    def of(cls, values: Iterable[float | None], digits: int = 1, signed: bool = False) -> Value | None:
        """Mean and standard deviation over the values that are known; None without any."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        std = float(np.std(known, ddof=1)) if len(known) > 1 else None
        return cls(float(np.mean(known)), std, digits, signed, count=len(known))

    @classmethod
    def with_interval(cls, values: Iterable[float | None], digits: int = 1) -> Value | None:
        """The mean of differences or slopes with Student's 95 % interval."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        mean, interval = float(np.mean(known)), None
        if len(known) >= SEEDS_FOR_INTERVAL:
            from scipy import stats  # slow to import

            error = float(np.std(known, ddof=1)) / len(known) ** 0.5
            reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(known) - 1)) * error
            interval = (mean - reach, mean + reach)
        return cls(mean, digits=digits, signed=True, interval=interval, count=len(known))

    def number(self, value: float) -> str:
        """Another number in the same format; never minus zero."""
        return f"{round(value, self.digits) + 0.0:{'+' if self.signed else ''}.{self.digits}f}"

    @property
    def difference(self) -> str | None:
        """Ours minus the published number, rounded once."""
        if self.paper is None:
            return None
        return f"{round(self.mean - self.paper, self.digits) + 0.0:+.{self.digits}f}"

    def parts(self) -> dict[str, Any]:
        """Everything beside the mean, for columns of their own."""
        low, high = self.interval or (None, None)
        notes = " ".join(self.footnotes) or None
        return {"std": self.std, "low": low, "high": high, "paper": self.paper, "rank": self.rank, "notes": notes}


Cell = str | int | float | Value | None
Row = tuple[Cell, ...]


class Table:
    """Rows in the order in which they are read."""

    def __init__(
        self,
        caption: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[Cell]] = (),
        notes: Iterable[str] = (),
        labels: int = 1,
    ) -> None:
        self.caption = caption
        self.frame = pd.DataFrame(list(map(tuple, rows)), columns=list(columns), dtype=object)
        self.notes = tuple(notes)
        self.labels = labels
        """Number of leading columns that name a row."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.frame.columns)

    @property
    def rows(self) -> list[Row]:
        return list(self.frame.itertuples(index=False, name=None))

    def footnotes(self) -> list[str]:
        """The footnotes of all cells, each once, in reading order."""
        cells = (cell for row in self.rows for cell in row)
        return list(dict.fromkeys(text for cell in cells if isinstance(cell, Value) for text in cell.footnotes))

    def without_empty_columns(self) -> Table:
        """All columns where there is no row."""
        kept = [name for name in self.columns if self.frame.empty or self.frame[name].notna().any()]
        return self.select(kept)

    def select(self, columns: Sequence[str]) -> Table:
        labels = sum(name in columns for name in self.columns[: self.labels])
        return Table(self.caption, columns, self.frame[list(columns)].values.tolist(), self.notes, labels)

    def where(self, wanted: Callable[[Row], bool]) -> Table:
        return Table(self.caption, self.columns, [row for row in self.rows if wanted(row)], self.notes, self.labels)

    def noting(self, *notes: str) -> Table:
        return Table(self.caption, self.columns, self.rows, (*self.notes, *notes), self.labels)

    def is_numeric(self, column: str) -> bool:
        return any(isinstance(cell, (int, float, Value)) for cell in self.frame[column])

    def numbers(self) -> pd.DataFrame:
        """Means in full precision; standard deviations, intervals, published numbers and notes in columns beside."""
        columns: dict[str, list[Any]] = {}
        for name in self.columns:
            cells = list(self.frame[name])
            columns[name] = [cell.mean if isinstance(cell, Value) else cell for cell in cells]
            parts = [cell.parts() if isinstance(cell, Value) else {} for cell in cells]
            for part in Value(0.0).parts():
                beside = [each.get(part) for each in parts]
                if any(value is not None for value in beside):
                    source = next((cell.source for cell in cells if isinstance(cell, Value)), "")
                    columns[f"{name} {source if part == 'paper' else part}"] = beside
        return pd.DataFrame(columns, dtype=object)


def slope(values: Sequence[float]) -> float | None:
    """Change from one value to the next, by least squares. None for a single value."""
    return float(np.polyfit(range(len(values)), values, 1)[0]) if len(values) > 1 else None


def rank_correlation(ours: Sequence[float], paper: Sequence[float]) -> float | None:
    """Spearman's. None below three values, or where all are equal."""
    if len(ours) < 3 or len(set(ours)) == 1 or len(set(paper)) == 1:
        return None
    from scipy import stats  # slow to import

    return float(stats.spearmanr(ours, paper).statistic)


def pivot(cells: Iterable[tuple[Row, str, Cell]], columns: Sequence[str]) -> list[Row]:
    """From (label of the row, column, cell) to rows, in the order in which the labels are first met."""
    found: dict[Row, dict[Hashable, Cell]] = {}
    for label, column, cell in cells:
        found.setdefault(label, {})[column] = cell
    return [(*label, *map(row.get, columns)) for label, row in found.items()]


def with_ranks(cells: Sequence[Cell]) -> list[Cell]:
    """Marks the best and the second best of what may be compared. Equal as printed is equal, as in the paper."""

    def printed(cell: Cell) -> float | None:
        return float(cell.number(cell.mean)) if isinstance(cell, Value) and not cell.partial else None

    best = sorted({shown for cell in cells if (shown := printed(cell)) is not None}, reverse=True)[:2]
    if sum(printed(cell) is not None for cell in cells) < 2:
        return list(cells)
    return [
        replace(cell, rank=best.index(shown) + 1)
        if isinstance(cell, Value) and (shown := printed(cell)) in best and shown is not None
        else cell
        for cell in cells
    ]
