"""Processor time from nothing to SPG's published accuracy on C-10, less one point: ours against the textbook loop.

Epochs are counted from committed runs: ours with preset `compare`, the textbook's with the paper's training. The time
of a step, of an evaluation and of a task end is measured here, both ways in turn in one process, and multiplied. Runs
are those of results/; `python -m benchmarks.time_to_accuracy STORE` takes them from another store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from softmask.experiments.analyses.grouping import training_name
from softmask.experiments.paper import paper_measure
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.evaluation import accuracy
from softmask.learning.method import Method
from softmask.learning.task import Batches, Task

from .setup import BATCH, CLASSES, LAST, TASKS, at_last_task, random_images, textbook
from .step import native_bf16, our_step
from .textbook import TextbookSPG
from .timing import RESULTS, Report, interleaved

STORE = Path(__file__).parents[1] / "results"
IMAGES, VALIDATION = 4500, 500  # of a task of C-10
FEW = 8 * BATCH  # images on which passes are timed
ROUNDS = 15


def chosen(runs: list[StoredRun], training: str, precision: str) -> StoredRun:
    """The run of SPG with the lowest seed. No other change to the preset is allowed."""
    found = [
        run
        for run in runs
        if (run.config.method, run.config.sequence, run.config.training.precision) == ("spg", "C-10", precision)
        and training_name(run.config.training).split()[0] == training
        and run.config.network.width == 1
        and (run.summary().status, run.summary().tasks) == ("finished", TASKS)
    ]
    if not found:
        raise SystemExit(f"no finished run of spg on C-10 with preset {training} in {precision}")
    return min(found, key=lambda run: run.config.seeds.order)


def epochs_of(run: StoredRun) -> list[int]:
    counts = [0] * TASKS
    for event in run.events("epoch"):
        counts[event["task"]] += 1
    return counts


def evaluation(book: TextbookSPG, x: Tensor) -> None:
    book.backbone.eval()
    with torch.no_grad():
        for part in x.split(BATCH):
            book.heads[LAST](book.backbone(part))
    book.backbone.train()


def task_ends(variants: dict[str, Callable[[int], Callable[[], Any]]], heads: int) -> dict[str, float]:
    """Seconds of a task end on a whole task. Passes are timed on a part of it."""
    timings = interleaved({name: make(heads) for name, make in variants.items()}, rounds=3, warmups=1)
    return {name: timing.median * IMAGES / FEW for name, timing in timings.items()}


def our_end(method: Method) -> Callable[[int], Callable[[], Any]]:
    x, y = random_images(FEW)

    def made(heads: int) -> Callable[[], Any]:
        task = Task((heads,), "timed", CLASSES, Batches(x, y, BATCH), Batches(x[:BATCH], y[:BATCH], BATCH))
        return lambda: method.end_task(task)

    return made


def textbook_end(book: TextbookSPG) -> Callable[[int], Callable[[], Any]]:
    x, y = random_images(FEW)
    batches = list(zip(x.split(BATCH), y.split(BATCH), strict=True))
    return lambda heads: lambda: book.importance_through(batches, heads + 1)  # its own head costs as much as an old one


def measure(precision: str) -> dict[str, dict[str, float]]:
    """Seconds by way: of a step, of an evaluation of the validation set, of the task ends of the whole sequence."""
    torch.set_num_threads(1)
    book, spg = textbook(), at_last_task("spg")
    x, y = random_images(BATCH)
    held, labels = random_images(VALIDATION)
    steps = interleaved(
        {"textbook": lambda: book.step(x, y, LAST), "softmask": our_step(spg, precision)}, rounds=ROUNDS
    )
    mine = Batches(held, labels, BATCH)
    seen = interleaved(
        {"textbook": lambda: evaluation(book, held), "softmask": lambda: accuracy(spg, mine, LAST)}, rounds=ROUNDS
    )
    variants = {"textbook": textbook_end(book), "softmask": our_end(spg)}
    first, last = task_ends(variants, 0), task_ends(variants, LAST)
    return {
        way: {
            "step": steps[way].median,
            "evaluation": seen[way].median,
            "task ends": [first[way] + (last[way] - first[way]) * k / LAST for k in range(TASKS)],  # type: ignore[dict-item]
        }
        for way in variants
    }


def seconds_after(run: StoredRun, cost: dict[str, Any]) -> list[float]:
    """Processor time after each task."""
    batches, total, found = -(-IMAGES // BATCH), 0.0, []
    for epochs, end in zip(epochs_of(run), cost["task ends"], strict=True):
        total += epochs * (batches * cost["step"] + cost["evaluation"]) + end
        found.append(total)
    return found


def mean_accuracy(run: StoredRun) -> list[float]:
    """After each task, over all ten tasks in percent; those that are not learned yet count as chance."""
    matrix, chance = run.matrix(), 100 / CLASSES
    return [(float(matrix.iloc[k, : k + 1].sum()) + chance * (TASKS - 1 - k)) / TASKS for k in range(TASKS)]


def draw(curves: dict[str, tuple[list[float], list[float]]], target: float, file: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, (seconds, values) in curves.items():
        axis.plot([0, *(each / 60 for each in seconds)], [100 / CLASSES, *values], marker="o", label=name)
    axis.axhline(target, color="grey", linestyle=":", label=f"SPG in the paper less one point ({target:.1f})")
    axis.set(xlabel="processor time (minutes)", ylabel="mean accuracy over the ten tasks (%)", title="SPG on C-10")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(file)
    plt.close(figure)


def main(*arguments: str) -> None:
    runs = list(Store(Path(arguments[0]) if arguments else STORE).runs())
    precision = "bf16" if native_bf16() else "fp32"
    known = {"softmask": chosen(runs, "compare", precision), "textbook": chosen(runs, "paper", "fp32")}
    published = paper_measure("ACC", "SPG", "C-10")
    assert published is not None
    target, costs = published - 1, measure(precision)
    curves = {way: (seconds_after(run, costs[way]), mean_accuracy(run)) for way, run in known.items()}
    took = {way: seconds[-1] for way, (seconds, _) in curves.items()}
    rows = [
        (
            f"{way} ({training_name(run.config.training)}, {run.config.training.precision})",
            sum(epochs_of(run)),
            f"{1e3 * costs[way]['step']:.0f} ms",
            f"{took[way] / 60:.1f} min",
            f"{curves[way][1][-1]:.1f}",
            "yes" if curves[way][1][-1] >= target else "NO",
            f"{took['textbook'] / took[way]:.1f} x",
        )
        for way, run in known.items()
    ]
    names = {"softmask": "softmask, preset compare", "textbook": "textbook loop, the paper's training"}
    RESULTS.mkdir(exist_ok=True)
    draw({names[way]: curve for way, curve in curves.items()}, target, RESULTS / "time_to_accuracy.svg")
    Report(
        "time_to_accuracy",
        ("way", "epochs", "step", "processor time", "ACC", f"at least {target:.1f}", "faster"),
        rows,
        ["The accuracy of the textbook loop is that of our run with preset `paper`, whose arithmetic is the same."],
    ).publish({"costs": costs, "curves": curves, "target": target})


if __name__ == "__main__":
    main(*sys.argv[1:])
