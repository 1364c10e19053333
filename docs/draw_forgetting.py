"""Draws docs/forgetting.svg from the stored runs in results/: accuracy on the first task while others are learned.

python docs/draw_forgetting.py          (needs matplotlib)
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from softmask.runs.store import Store, StoredRun

HERE = Path(__file__).parent
LINES = {"spg": ("SPG (soft-masking)", "#0b6e4f"), "ncl": ("plain fine-tuning", "#c0392b")}


def chosen(method: str) -> StoredRun:
    runs = Store(HERE.parent / "results").runs()
    return next(run for run in runs if run.config.method == method and run.config.sequence == "C-10" and run.finished)


def draw() -> None:
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "softmask", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    for method, (label, colour) in LINES.items():
        matrix = chosen(method).accuracies()
        places = sorted(matrix)
        values = [matrix[after][0] for after in places]
        axes.plot([place + 1 for place in places], values, "o-", color=colour, linewidth=2, markersize=4)
        axes.annotate(label, (places[-1] + 1, values[-1]), xytext=(8, -3), textcoords="offset points", color=colour)
    axes.axhline(10, color="#888888", linewidth=1, linestyle=":")
    axes.annotate("chance", (1, 10), xytext=(0, 4), textcoords="offset points", color="#888888")
    axes.set(xlabel="tasks of CIFAR-100 learned so far", ylabel="accuracy on the first, %", ylim=(0, None))
    axes.set_xlim(0.7, len(places) + 3.2)
    axes.set_xticks(range(1, len(places) + 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "forgetting.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
