"""What a run will take, before it starts: steps, time, memory, disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from softmask.learning.catalogue import METHODS
from softmask.learning.fit import Fit
from softmask.learning.method import Method
from softmask.learning.problem import Problem
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, TaskSequence
from softmask.runs.config import RunConfig

# What the plateau schedule usually needs a task on this network; 36 is the least that it can take.
USUAL_EPOCHS = 60
FLOAT = 4


@dataclass(frozen=True)
class Forecast:
    """Expected, not promised."""

    steps: int
    seconds: float
    memory_bytes: int
    disk_bytes: int
    """While it runs."""
    kept_bytes: int
    """Once it is finished, with the last checkpoint kept."""
    all_kept_bytes: int
    """The same with the checkpoints of all tasks."""
    note: str

    def lines(self) -> list[str]:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        duration = f"{hours} h {minutes} min" if hours else f"{self.seconds / 60:.1f} min"
        return [
            f"steps   {self.steps:,} of one batch",
            f"time    {duration} on this machine, one thread, nothing else running",
            f"memory  {self.memory_bytes / 2**20:,.0f} MiB",
            f"disk    {self.disk_bytes / 2**20:,.0f} MiB (less once finished)",
            *([f"note    {self.note}"] if self.note else []),
        ]


def forecast(config: RunConfig, sequence: TaskSequence) -> Forecast:
    training = config.training
    problem = Problem(sequence.input_shape, sequence.classes, config.network, config.seeds)
    method_class = METHODS.load(config.method)
    cost = method_class.cost(problem)
    torch.manual_seed(derive(config.seeds.init, "weights"))
    plain = Method(problem)
    with torch.device("meta"):  # only its plan is asked for, not its weights
        method = method_class(problem, config.method_settings())
    stages = method.stages(sequence.tasks, training)
    epochs = method.adapted(training).epochs
    if training.schedule == "plateau":
        epochs = min(USUAL_EPOCHS, epochs)
    an_epoch = sum(stage.train.count for stage in stages)
    trained = an_epoch * (epochs * cost.step + cost.task_end_passes / len(sequence.tasks))
    network = FLOAT * sum(parameter.numel() for parameter in plain.parameters())
    images = sum(task.train.images.nbytes + task.val.images.nbytes for task in sequence.tasks)
    images += sum(test.images.nbytes for test in sequence.tests)
    # The network, its gradients, the best state so far and the state that is being saved; then what is remembered.
    memory = network * (4 + cost.kept_copies) + images + 300 * 2**20
    kept = int(network * (1 + cost.kept_copies))
    return Forecast(
        steps=epochs * sum(len(stage.train) for stage in stages),
        seconds=trained * _seconds_an_image(plain, sequence, config),
        memory_bytes=int(memory),
        disk_bytes=2 * kept + 2 * network,
        kept_bytes=kept,
        all_kept_bytes=kept * len(stages),
        note=cost.note,
    )


def _seconds_an_image(plain: Method, sequence: TaskSequence, config: RunConfig) -> float:
    """Times a few steps of plain training, the unit of all costs."""
    task, size = sequence.tasks[0], config.training.batch
    images, labels = task.train.images[: 8 * size], task.train.labels[: 8 * size]
    part = Batches(images, labels, size, normalise=task.train.normalise)
    plain.begin_task(task)
    fit = Fit(plain, replace(task, train=part), config.training)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    fit.train_epoch()  # the first pass warms up
    start = time.perf_counter()
    fit.train_epoch()
    torch.set_num_threads(before)
    return (time.perf_counter() - start) / part.count
