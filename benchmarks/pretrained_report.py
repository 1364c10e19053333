"""The cells of `pretrained` as tables in docs/which-protection.md and as a plot, docs/pretrained.svg."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .protection_report import title

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PLOT = DOCS / "which-protection.md", DOCS / "pretrained.svg"
BEGIN, END = "<!-- pretrained: written by make bench NAME=pretrained -->", "<!-- end of pretrained -->"
NAMES = {
    "protect=0.5": "**protect**, from the model alone",
    "inputs=100": "**protect**, with 100 inputs",
    "labelled=100": "**protect**, with 100 labelled inputs",
    "half=0.5": "**protect**, from the model alone, its copy in bfloat16",
}
HEADS = {
    "pretrained": "| CNN that knows 60 classes | of these, before and at the end (%) | new, when learned (%) | seeds |",
    "gpt": "| GPT that knows English | loss on English, before and at the end | Python, C when learned (%) | seeds |",
}


def lines_of(cells: Sequence[dict[str, Any]], setting: str) -> list[str]:
    """A row a way, means over seeds."""
    by_way = defaultdict(list)
    for cell in cells:
        if cell["setting"] == setting:
            by_way[cell["way"]].append(cell)
    if not by_way:
        return []
    rows = []
    for way, of in by_way.items():
        before, end, new = kept_and_learned(of, setting)
        seeds = " ".join(str(cell["seed"]) for cell in sorted(of, key=lambda cell: cell["seed"]))
        numbers = f"{before:.1f}, {end:.1f}" if setting == "pretrained" else f"{before:.3f}, {end:.3f}"
        rows.append((-end if setting == "pretrained" else end, f"| {name(way)} | {numbers} | {new:.1f} | {seeds} |"))
    return [HEADS[setting], "|---|---|---|---|", *(line for _, line in sorted(rows))]


def kept_and_learned(cells: Sequence[dict[str, Any]], setting: str) -> tuple[float, float, float]:
    """The first task before and at the end (accuracy, or loss of text), and the mean accuracy of new tasks."""
    if setting == "pretrained":
        before, end = ([cell["learned"][0] for cell in cells], [cell["test"][0] for cell in cells])
    else:
        before, end = ([cell["first_loss"][place] for cell in cells] for place in (0, 1))
    new = [value for cell in cells for value in cell["learned"][1:]]
    return statistics.fmean(before), statistics.fmean(end), statistics.fmean(new)


def name(way: str) -> str:
    return NAMES.get(way) or title(way)


def draw(cells: Sequence[dict[str, Any]]) -> None:
    settings = [setting for setting in HEADS if any(cell["setting"] == setting for cell in cells)]
    figure, axes = plt.subplots(1, len(settings), figsize=(5 * len(settings), 4.4), squeeze=False, layout="constrained")
    labels = {"pretrained": "60 classes, at the end (%)", "gpt": "loss on English, at the end"}
    for axis, setting in zip(axes[0], settings, strict=True):
        for way in dict.fromkeys(cell["way"] for cell in cells):
            of = [cell for cell in cells if (cell["setting"], cell["way"]) == (setting, way)]
            if of:
                _, end, new = kept_and_learned(of, setting)
                look = {"marker": "o" if way in NAMES else "x", "linestyle": "none"}
                if way.startswith("half"):  # lies on the row with the copy in fp32
                    look |= {"markersize": 10, "markerfacecolor": "none"}
                axis.plot(new, end, label=name(way).replace("**", ""), **look)
        before, _, _ = kept_and_learned([cell for cell in cells if cell["setting"] == setting], setting)
        axis.axhline(before, color="#999999", linestyle="--", linewidth=0.8, label="before the new tasks")
        axis.set(xlabel="new tasks, when learned (%)", ylabel=labels[setting])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
        if setting == "gpt":
            axis.invert_yaxis()  # less is better: up, as on the left
    figure.savefig(PLOT, metadata={"Date": None})
    plt.close(figure)


def publish(cells: Sequence[dict[str, Any]]) -> None:
    if not cells:
        return
    tables = [lines_of(cells, setting) for setting in HEADS]
    text = "\n\n".join("\n".join(lines) for lines in tables if lines)
    print(text)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    picture = "![What is kept of the pretrained model against what is learned](pretrained.svg)"
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{picture}\n\n{END}{rest.partition(END)[2]}")
    draw(cells)
