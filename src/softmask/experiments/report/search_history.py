"""The history of a search as a figure: every trial, the best so far, and what the defaults reach."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from softmask.errors import SoftmaskError

if TYPE_CHECKING:
    from softmask.experiments.runs.study import TrialRecord

SUFFIXES = (".svg", ".png", ".pdf")
MARKS = (("o", "#0072b2"), ("x", "#767676"))


def check_figure(file: Path) -> None:
    if file.suffix not in SUFFIXES:
        raise SoftmaskError(f"{file}: a figure is one of {', '.join(SUFFIXES)}")


def draw_history(trials: list[TrialRecord], title: str, file: Path) -> None:
    """SVG, PNG or PDF, as the file's name says."""
    check_figure(file)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    points = {"finished": _points(trials, "complete"), "given up early": _points(trials, "pruned")}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (label, (numbers, values)), (mark, colour) in zip(points.items(), MARKS, strict=True):
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
