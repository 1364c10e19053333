"""Avalanche's Naive and EWC beside our NCL and EWC: an epoch over the same images, the same network, one thread.

Needs `avalanche-lib` and torchvision's Python part (`pip install --no-deps torchvision` beside a CPU build of torch).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from softmask.learning.fit import Fit
from softmask.learning.registry import METHODS
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training

from .setup import BATCH, CLASSES, random_images, scenario
from .textbook import standard_alexnet
from .timing import Report, summary

IMAGES, ROUNDS, RATE = 1280, 5, 1e-4
PAIRS = {"Naive": "ncl", "EWC": "ewc"}
Epoch = Callable[[], float]
"""Trains once over the images of the second task and returns the seconds that its steps took."""


def declare_missing_operators() -> torch.library.Library:
    """torchvision asks for two compiled operators when it is imported; beside a CPU torch its binary does not load.
    Declared without a body they let the import pass; nothing here calls them. Keep what is returned."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def avalanche_epoch(name: str) -> Epoch:
    """Evaluation and logging are off; what a strategy does at the end of a task is not counted."""
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils.data import AvalancheDataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from avalanche.core import SupervisedPlugin
    from avalanche.training.supervised import EWC, Naive
    from torch.utils.data import TensorDataset

    class Clock(SupervisedPlugin):  # type: ignore[misc]
        seconds = started = 0.0

        def before_training_epoch(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def after_training_epoch(self, *_: Any, **__: Any) -> None:
            self.seconds = time.perf_counter() - self.started

    def experience(seed: int, count: int) -> Any:
        x, y = random_images(count, seed)
        labels = DataAttribute(y.tolist(), name="targets")
        task = DataAttribute([0] * count, name="targets_task_labels", use_in_getitem=True)
        return AvalancheDataset(TensorDataset(x, y), data_attributes=[labels, task])

    torch.manual_seed(0)
    network, clock = nn.Sequential(standard_alexnet(), nn.Linear(2048, CLASSES)), Clock()
    more: dict[str, Any] = {"ewc_lambda": 1.0, "mode": "online", "decay_factor": 1.0} if name == "EWC" else {}
    strategy = {"EWC": EWC, "Naive": Naive}[name](
        model=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=RATE),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        plugins=[clock],
        evaluator=None,
        **more,
    )
    stream = benchmark_from_datasets(train=[experience(0, BATCH), experience(1, IMAGES)]).train_stream
    strategy.train(stream[0])

    def epoch() -> float:
        strategy.train(stream[1])
        return clock.seconds

    return epoch


def our_epoch(name: str) -> Epoch:
    torch.manual_seed(0)
    method = METHODS.load(name)(scenario())

    def task(index: int, count: int) -> Task:
        x, y = random_images(count, index)
        return Task((index,), f"generated {index}", CLASSES, Batches(x, y, BATCH), Batches(x[:BATCH], y[:BATCH], BATCH))

    first, second = task(0, BATCH), task(1, IMAGES)
    method.begin_task(first)
    method.eval()
    method.end_task(first)
    method.begin_task(second)
    fit = Fit(method, second, Training(lr=RATE))

    def epoch() -> float:
        start = time.perf_counter()
        fit.train_epoch()
        return time.perf_counter() - start

    return epoch


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    library = declare_missing_operators()
    try:
        import avalanche
    except ImportError as error:
        print(f"Avalanche cannot be imported here, so nothing is measured: {error}")
        return
    epochs = {name: avalanche_epoch(name) for name in PAIRS} | {name: our_epoch(name) for name in PAIRS.values()}
    seconds: dict[str, list[float]] = {name: [] for name in epochs}
    for number in range(1 + ROUNDS):  # in turn, and the first round is for warming up
        for name, epoch in epochs.items():
            took = epoch()
            if number:
                seconds[name].append(took)
    timings = {name: summary(values) for name, values in seconds.items()}
    rows: list[tuple[Any, ...]] = []
    for theirs, ours in PAIRS.items():
        speeds = [IMAGES / timings[name].median for name in (theirs, ours)]
        rows.append((f"{theirs} / {ours}", *(f"{speed:,.0f}" for speed in speeds), f"{speeds[1] / speeds[0]:.2f} x"))
    columns = ("Avalanche / softmask", "Avalanche, images/s", "softmask, images/s", "faster")
    note = f"Avalanche {avalanche.__version__}; one thread, batch {BATCH}, training steps alone."
    Report("avalanche", columns, rows, [note]).publish(timings)
    del library


if __name__ == "__main__":
    main()
