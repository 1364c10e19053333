"""The report's tables and figures as files; the history of a search as a figure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.table import Table
from softmask.experiments.report.charts import COLOURS, DASHES, Chart, DotChart, HeatMap, LineChart, style
from softmask.experiments.report.tables import SUFFIXES, WRITERS
from softmask.storage.state_file import write_text

FORMATS = ("png", "svg", "pdf")
SMALL = 8
HISTORY_MARKS = (("o", "#0072b2"), ("x", "#767676"))
TEXT_IN_CELLS = 12
"""Up to this many tasks a cell shows its number."""


def write_figure(chart: Chart, folder: Path) -> list[Path]:
    """The chart in all formats; returns the files."""
    import matplotlib  # slow to import

    settings: Any = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "softmask",
    }
    with matplotlib.rc_context(settings):
        figure = _draw(chart)
        files = []
        for form in FORMATS:
            files.append(folder / f"{chart.name}.{form}")
            about = {"CreationDate": None} if form == "pdf" else {"Date": None} if form == "svg" else {}
            figure.savefig(files[-1], dpi=200, bbox_inches="tight", metadata=about)
    return files


def _draw(chart: Chart) -> Any:
    from matplotlib.figure import Figure

    if isinstance(chart, LineChart):
        figure = Figure(figsize=(6.4, 3.8))
        _draw_lines(chart, figure.add_subplot())
    elif isinstance(chart, DotChart):
        figure = Figure(figsize=(6.4, 0.9 + 0.32 * len(chart.dots)))
        _draw_dots(chart, figure.add_subplot())
    else:
        figure = Figure(figsize=(4.8, 4.2))
        _draw_matrix(chart, figure.add_subplot(), figure)
    figure.axes[0].set_title(chart.title, loc="left", fontsize=10)
    if chart.note:
        figure.axes[0].set_xlabel(f"{figure.axes[0].get_xlabel()}\n{chart.note}")
    return figure


def _draw_lines(chart: LineChart, axes: Any) -> None:
    for place, line in enumerate(chart.series):
        colour, dash = style(line.label, place)
        pattern = (0, tuple(map(float, DASHES[dash].split()))) if DASHES[dash] else "-"
        ink = COLOURS[colour][0]
        axes.plot(line.x, line.y, color=ink, linestyle=pattern, marker="o", markersize=3, label=line.label)
        if line.std is not None:
            low = [y - s for y, s in zip(line.y, line.std, strict=True)]
            high = [y + s for y, s in zip(line.y, line.std, strict=True)]
            axes.fill_between(line.x, low, high, color=ink, alpha=0.12, linewidth=0)
        if len(chart.series) <= SMALL:
            axes.annotate(f" {line.label}", (line.x[-1], line.y[-1]), color=ink, va="center", fontsize=8)
    if len(chart.series) > SMALL:
        axes.legend(fontsize=7, ncols=2, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    if axes.get_ylim()[0] < 0 < axes.get_ylim()[1]:
        axes.axhline(0, color="#999999", linewidth=0.8)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)


def _draw_dots(chart: DotChart, axes: Any) -> None:
    for place, dot in enumerate(chart.dots):
        ink = COLOURS[style(dot.label, place)[0]][0]
        axes.errorbar(dot.value.mean, place, xerr=dot.value.std, fmt="o", color=ink, capsize=2)
        if dot.value.paper is not None:
            axes.plot(dot.value.paper, place, "D", color="#666666", fillstyle="none", markersize=5)
    if chart.chance is not None:
        axes.axvline(chart.chance, color="#999999", linewidth=0.8, linestyle=":")
    marks = "; diamonds: the paper" * any(dot.value.paper is not None for dot in chart.dots)
    marks += "; dotted: chance" * (chart.chance is not None)
    axes.set_yticks(range(len(chart.dots)), [f"{dot.label}, n = {dot.value.count}" for dot in chart.dots])
    axes.invert_yaxis()
    axes.set_xlabel(chart.x_label + marks)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.6)


def _draw_matrix(chart: HeatMap, axes: Any, figure: Any) -> None:
    rows = [[float("nan") if value is None else value for value in row] for row in chart.rows]
    image = axes.imshow(rows, cmap="cividis", vmin=0, vmax=100)
    axes.set_xlabel("accuracy on task")
    axes.set_ylabel("after task")
    step = max(1, len(rows) // 10)
    ticks = range(0, len(rows), step)
    axes.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    columns = range(0, len(rows[0]), max(1, len(rows[0]) // 10))
    axes.set_xticks(columns, [str(tick + 1) for tick in columns])
    if len(rows[0]) <= TEXT_IN_CELLS:
        for i, row in enumerate(chart.rows):
            for j, value in enumerate(row):
                if value is not None:
                    ink = "black" if value > 60 else "white"
                    axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7, color=ink)
    figure.colorbar(image, ax=axes, label="accuracy, %")


def write_files(
    folder: Path, tables: dict[str, Table], figures: dict[str, list[Chart]], watch: Callable[[str], None] | None = None
) -> int:
    """Every table as Markdown, CSV and LaTeX, every figure as PNG, SVG and PDF; returns the number of files."""
    count = 0
    for name, table in tables.items():
        if table.rows:
            for form, suffix in SUFFIXES.items():
                write_text(folder / "tables" / f"{name}.{suffix}", WRITERS[form](table))
                count += 1
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for chart in (chart for each in figures.values() for chart in each):
        if watch is not None:
            watch(chart.name)
        count += len(write_figure(chart, folder / "figures"))
    return count


if TYPE_CHECKING:
    from softmask.experiments.runs.study import TrialRecord


def check_figure(file: Path) -> None:
    if file.suffix.removeprefix(".") not in FORMATS:
        raise SoftmaskError(f"{file}: the name of a figure ends in one of {', '.join(FORMATS)}")


def draw_history(trials: list[TrialRecord], title: str, file: Path) -> None:
    """Every trial, the best so far, and what the defaults reach: SVG, PNG or PDF, as the file's name says."""
    check_figure(file)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    points = {"finished": _points(trials, "complete"), "given up early": _points(trials, "pruned")}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (label, (numbers, values)), (mark, colour) in zip(points.items(), HISTORY_MARKS, strict=True):
        axes.plot(numbers, values, mark, color=colour, label=label)
    numbers, values = points["finished"]
    axes.step(numbers, list(accumulate(values, max)), where="post", color="#d55e00", label="best so far")
    if numbers[:1] == [1]:
        axes.axhline(values[0], color="#009e73", linestyle="--", label="defaults")
    axes.set(title=title, xlabel="trial", ylabel="mean validation accuracy (%)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)


def _points(trials: list[TrialRecord], state: str) -> tuple[list[int], list[float]]:
    shown = [(trial.number, trial.value) for trial in trials if trial.state == state and trial.value is not None]
    return [number for number, _ in shown], [value for _, value in shown]
