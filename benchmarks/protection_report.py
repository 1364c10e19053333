"""The cells of `protection` as a table in docs/which-protection.md and as a plot, docs/protection.svg."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from .protection_settings import SETTINGS

DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- table: written by make bench NAME=protection -->", "<!-- end of the table -->"
HEADER = """| way | tasks at the end | new, when learned | **mean at the end** | seeds |
|---|---|---|---|---|"""
NAMES = {
    "plain": "plain fine-tuning",
    "lr": "backbone's learning rate x {}",
    "freeze": "frozen: {}",
    "l2sp": "L2-SP {}",
    "ewc": "EWC {}",
    "replay": "replay of {} of old data",
    "lora": "LoRA, {}",
    "spg": "SoftMask (SPG), {}",
    "features": "KeepAnswers, features, {}",
    "answers": "KeepAnswers, {}",
    "subspace": "SubspaceMask {}",
    "protect": "**protect, strength {}**",
}
VALUES = {
    "lower": "lower layers",
    "all": "the backbone",
    "merged:8": "rank 8, merged",
    "task:16": "rank 16, one a task",
    "head": "head masked",
    "body": "head free",
    "0.05": "5 %",
}


@dataclass(frozen=True)
class Row:
    """Means over seeds, in percent. `new`: later tasks when they were learned; `old`: all but the last, at the end."""

    way: str
    seeds: tuple[int, ...]
    end: tuple[float, ...]
    new: float
    old: float
    mean: float
    spread: float
    validation: float


def rows_of(cells: Sequence[dict[str, Any]], setting: str) -> list[Row]:
    by_way: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cell in cells:
        if cell["setting"] == setting:
            by_way[cell["way"]].append(cell)
    rows = []
    for way, of in by_way.items():
        means = [statistics.fmean(cell["test"]) for cell in of]
        rows.append(
            Row(
                way,
                tuple(sorted(cell["seed"] for cell in of)),
                tuple(statistics.fmean(values) for values in zip(*(cell["test"] for cell in of), strict=True)),
                statistics.fmean(value for cell in of for value in cell["learned"][1:]),
                statistics.fmean(value for cell in of for value in cell["test"][:-1]),
                statistics.fmean(means),
                max(means) - min(means),
                statistics.fmean(value for cell in of for value in cell["validation"]),
            )
        )
    return rows


def family(way: str) -> str:
    """Ways that differ in their strength alone."""
    kinds = [part.partition("=") for part in way.split("+")]
    return " + ".join(f"lora {value.split(':')[0]}" if kind == "lora" else kind for kind, _, value in kinds)


def title(way: str) -> str:
    parts = [part.partition("=") for part in way.split("+")]
    return " + ".join(NAMES[kind].format(VALUES.get(value, value)) for kind, _, value in parts)


def table(cells: Sequence[dict[str, Any]]) -> str:
    lines = []
    for name, setting in SETTINGS.items():
        rows = rows_of(cells, name)
        if not rows:
            continue
        families = defaultdict(list)
        for row in rows:
            families[family(row.way)].append(row)
        # Seeds differ more than strengths do: only rows of the same seeds can be chosen from.
        alike = [of for of in families.values() if len(of) > 1 and len({row.seeds for row in of}) == 1]
        best = [max(of, key=lambda row: row.validation) for of in alike]
        lines += [f"\n### {setting.title}\n"]
        lines += [
            "| way | tasks at the end | new, when learned | **mean at the end** | seeds |",
            "|---|---|---|---|---|",
        ]
        for row in sorted(rows, key=lambda r: -r.mean):
            seeds = " ".join(map(str, row.seeds))
            chosen = " (chosen)" if row in best else ""
            end, spread = (
                " ".join(f"{v:.1f}" for v in row.end),
                f" (range {row.spread:.1f})" if len(row.seeds) > 1 else "",
            )
            lines.append(f"| {title(row.way)}{chosen} | {end} | {row.new:.1f} | {row.mean:.1f}{spread} | {seeds} |")
    return "\n".join(lines)


def draw(cells: Sequence[dict[str, Any]], file: Path) -> None:
    """Old against new accuracy: a panel a setting, a curve a way over its strength."""
    names = [name for name in SETTINGS if rows_of(cells, name)]
    figure, axes = plt.subplots(1, len(names), figsize=(4.2 * len(names), 4.2), squeeze=False, layout="constrained")
    kinds = list(dict.fromkeys(family(cell["way"]) for cell in cells))
    colours = {kind: plt.get_cmap("tab20")(place % 20) for place, kind in enumerate(kinds)}
    for axis, name in zip(axes[0], names, strict=True):
        of = defaultdict(list)
        for row in rows_of(cells, name):
            of[family(row.way)].append(row)
        for kind, rows in of.items():
            rows.sort(key=lambda row: row.old)
            ours = kind in ("protect", "answers", "subspace", "features") or "+" in kind
            style = {"marker": "o", "linewidth": 2} if ours else {"marker": "x", "linewidth": 1, "linestyle": "--"}
            axis.plot([r.new for r in rows], [r.old for r in rows], label=kind, color=colours[kind], **style)
        axis.set(title=SETTINGS[name].title, xlabel="new tasks, when learned (%)", ylabel="old tasks, at the end (%)")
        axis.grid(alpha=0.3)
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=7, fontsize=8, frameon=False)
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def publish(cells: Sequence[dict[str, Any]]) -> None:
    if not cells:
        return
    text, page = table(cells), DOCS / "which-protection.md"
    print(text)
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n\n{END}{rest.partition(END)[2]}")
    draw(cells, DOCS / "protection.svg")
