"""Figures as data: what is shown, not how it is drawn. One form serves the page's script and matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Series:
    """One line: a value for each place, and its standard deviation over seeds where there is one."""

    label: str
    x: tuple[int, ...]
    y: tuple[float, ...]
    std: tuple[float, ...] | None = None


@dataclass(frozen=True)
class LineChart:
    """Lines over a number of tasks."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    from_zero: bool = False
    """Whether the axis begins at nothing: for amounts."""

    @property
    def alt(self) -> str:
        """What it shows, for those who do not see it."""
        ends = ", ".join(f"{line.label} from {line.y[0]:.1f} to {line.y[-1]:.1f}" for line in self.series)
        return f"Line chart. {self.title}. {self.y_label} over {self.x_label}: {ends}."

    def to_dict(self) -> dict[str, Any]:
        lines = [
            {"label": line.label, "x": line.x, "y": rounded(line.y), "std": rounded(line.std) if line.std else None}
            for line in self.series
        ]
        axes = {"x": self.x_label, "y": self.y_label, "zero": self.from_zero, "digits": 2 if self.from_zero else 1}
        return {"kind": "line", "title": self.title, **axes, "series": lines}


@dataclass(frozen=True)
class Dot:
    """One system: our mean, its standard deviation, and the paper's number."""

    label: str
    value: float
    std: float | None
    paper: float | None


@dataclass(frozen=True)
class DotChart:
    """Systems below one another, ours and the paper's number on one axis."""

    name: str
    title: str
    x_label: str
    dots: tuple[Dot, ...]

    @property
    def alt(self) -> str:
        told = ", ".join(
            f"{dot.label} {dot.value:.1f}" + (f" (paper {dot.paper:.1f})" if dot.paper is not None else "")
            for dot in self.dots
        )
        return f"Dot chart. {self.title}. {self.x_label}: {told}."

    def to_dict(self) -> dict[str, Any]:
        dots = [
            [dot.label, *(None if v is None else round(v, 2) for v in (dot.value, dot.std, dot.paper))]
            for dot in self.dots
        ]
        return {"kind": "dots", "title": self.title, "x": self.x_label, "dots": dots}


@dataclass(frozen=True)
class HeatMap:
    """An accuracy matrix: what was known of each task after each task."""

    name: str
    title: str
    rows: tuple[tuple[float | None, ...], ...]

    @property
    def alt(self) -> str:
        last = [value for value in self.rows[-1] if value is not None]
        diagonal = [self.rows[i][i] for i in range(len(self.rows)) if i < len(self.rows[i])]
        learned = [value for value in diagonal if value is not None]
        means = [f"{sum(values) / len(values):.1f}" if values else "nothing" for values in (learned, last)]
        return f"Heat map. {self.title}. Mean accuracy just after learning {means[0]}, after the last task {means[1]}."

    def to_dict(self) -> dict[str, Any]:
        rows = [[None if value is None else round(value, 1) for value in row] for row in self.rows]
        return {"kind": "heat", "title": self.title, "rows": rows}


Chart = LineChart | DotChart | HeatMap


def rounded(values: Sequence[float]) -> list[float]:
    """Enough digits for a screen."""
    return [round(value, 2) for value in values]
