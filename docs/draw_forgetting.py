"""Draws docs/forgetting.svg from the stored runs in results/: accuracy on the first task while others are learned.

python docs/draw_forgetting.py          (needs matplotlib)
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store

HERE = Path(__file__).parent
# Fine-tuning is shown at SPG's learning rate and at a gentle one, at which it forgets far less.
LINES = {
    "SPG (soft-masking)": ("spg", {}, "#0b6e4f", "-", "bottom"),
    "plain fine-tuning,\na fifth of the rate": ("ncl", {"settings.lr": 0.05}, "#c0392b", "--", "top"),
    "plain fine-tuning": ("ncl", {}, "#c0392b", "-", "center"),
}


def first_task(method: str, changes: dict[str, float]) -> list[float]:
    """Its accuracy after each task of C-10, short training, averaged over the seeds that were run."""
    store = Store(HERE.parent / "results")
    wanted = (make_config(method, "C-10", preset="short", seed=seed, changes=changes) for seed in (1, 2, 3))
    found = [run.accuracies() for config in wanted if (run := store.find(config)) is not None and run.finished]
    return [mean(matrix[after][0] for matrix in found) for after in sorted(found[0])]


def draw() -> None:
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "softmask", "font.family": "sans-serif"})
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    for label, (method, changes, colour, style, side) in LINES.items():
        values = first_task(method, changes)
        axes.plot(range(1, len(values) + 1), values, "o", linestyle=style, color=colour, linewidth=2, markersize=4)
        axes.annotate(
            label, (len(values), values[-1]), xytext=(8, 0), textcoords="offset points", color=colour, va=side
        )
    axes.axhline(10, color="#888888", linewidth=1, linestyle=":")
    axes.annotate("chance", (1, 10), xytext=(0, 4), textcoords="offset points", color="#888888")
    axes.set(xlabel="tasks of CIFAR-100 learned so far", ylabel="accuracy on the first, %", ylim=(0, None))
    axes.set_xlim(0.7, len(values) + 3.2)
    axes.set_xticks(range(1, len(values) + 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(HERE / "forgetting.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
