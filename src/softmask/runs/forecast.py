"""What a run will take, before it starts: steps, time, memory, disk."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from softmask.learning.catalogue import METHODS
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.method import Cost, Method
from softmask.learning.problem import Problem
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, TaskSequence
from softmask.runs.config import RunConfig
from softmask.runs.rehearsal import FORWARD, Rehearsal, rehearse, total_looks
from softmask.runs.rehearsal import TASKS as REHEARSED

# What the plateau schedule usually needs a task on this network; 36 is the least that it can take.
USUAL_EPOCHS = 60
# A method whose state is larger is not rehearsed.
LARGE = 512 * 2**20


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
    """From a rehearsal of the run's beginning; what grows with the tasks follows from the method's own costs."""
    problem = Problem(sequence.input_shape, sequence.classes, config.network, config.seeds)
    with torch.device("meta"):  # only its plan is asked for, not its weights
        method = METHODS.load(config.method)(problem, config.method_settings())
    plan = _Plan(config, sequence, problem, method)
    if sum(tensor.nbytes for tensor in method.state_dict().values() if isinstance(tensor, Tensor)) > LARGE:
        return plan.by_formula()
    try:
        # What is measured is the last stage; where there is only one, nothing went before it to warm up.
        return plan.from_rehearsal(rehearse(config, sequence, at_least=2 if len(plan.stages) == 1 else 1))
    except DivergedError:
        return plan.by_formula()


class _Plan:
    """How much there is to do."""

    def __init__(self, config: RunConfig, sequence: TaskSequence, problem: Problem, method: Method) -> None:
        self.config, self.sequence, self.problem, self.method_class = config, sequence, problem, type(method)
        self.stages = method.stages(sequence.tasks, config.training)
        self.cost = method.cost(problem)
        self.epochs = method.adapted(config.training).epochs
        if config.training.schedule == "plateau":
            self.epochs = min(USUAL_EPOCHS, self.epochs)
        plain = _plain(problem)
        self.network = sum(parameter.nbytes for parameter in plain.parameters())
        heads = [sum(parameter.nbytes for parameter in head.parameters()) for head in plain.heads]
        self.copy = self.network - sum(heads) + max(heads)  # what grows with the tasks is no copy of all heads

    @property
    def steps(self) -> int:
        return self.epochs * sum(len(stage.train) for stage in self.stages)

    def from_rehearsal(self, found: Rehearsal) -> Forecast:
        stages, epochs = self.stages, self.epochs
        images = sum(stage.train.count for stage in stages)
        learned = epochs * (images + FORWARD * sum(stage.val.count for stage in stages))
        looks, rows = total_looks(self.sequence.tasks, self.sequence.tests, stages)
        events = rows + len(stages) * (epochs + 1)
        step_growth, end_growth = self._growth()
        # Some methods have room for all tasks from the start: it was there already when the rehearsal was weighed.
        growth = max(0, int(self.network + self.cost.kept_copies * self.copy) - found.kept_bytes)
        lines = rows * found.row_bytes + (events - rows) * found.event_bytes
        kept = found.kept_bytes + growth
        # Of a joint training, all heads are saved after an epoch, as they are and at their best; rehearsed were a few.
        working = max(found.working_bytes, 2 * kept if len(stages) == 1 else 0)
        return Forecast(
            steps=self.steps,
            seconds=found.image * learned * step_growth
            + found.end * images * end_growth
            + found.look * looks
            + found.event * events
            + found.saving * len(stages) * (epochs + 1),
            memory_bytes=found.memory_bytes + 2 * growth,
            disk_bytes=max(working + 2 * growth, kept) + lines,
            kept_bytes=kept + lines,
            all_kept_bytes=(found.kept_bytes + growth // 2) * len(stages) + lines,
            note=self.cost.note,
        )

    def _growth(self) -> tuple[float, float]:
        """How much dearer than the last rehearsed task the mean of all is: its steps and its end."""
        count = min(REHEARSED, len(self.problem.classes))
        first, few = (self._cost_of(number) for number in (count - 1, count))
        steps = self.cost.step / few.step
        end_of_last = few.task_end_passes - (first.task_end_passes if count > 1 else 0.0)
        ends = self.cost.task_end_passes / (len(self.problem.classes) * end_of_last) if end_of_last else 1.0
        return steps, ends

    def _cost_of(self, tasks: int) -> Cost:
        return self.method_class.cost(replace(self.problem, classes=self.problem.classes[: max(1, tasks)]))

    def by_formula(self) -> Forecast:
        """Where a rehearsal would take too much itself: plain training is timed, the method's costs do the rest."""
        cost, sequence = self.cost, self.sequence
        passes = self.epochs * cost.step + cost.task_end_passes / len(sequence.tasks)
        trained = passes * sum(stage.train.count for stage in self.stages)
        images = sum(task.train.images.nbytes + task.val.images.nbytes for task in sequence.tasks)
        images += sum(test.images.nbytes for test in sequence.tests)
        torch.manual_seed(derive(self.config.seeds.init, "weights"))
        kept = int(self.network * (1 + cost.kept_copies))
        return Forecast(
            steps=self.steps,
            seconds=trained * _seconds_an_image(Method(self.problem), sequence, self.config),
            # The network, its gradients, the best state so far and the one that is being saved; then what is kept.
            memory_bytes=int(self.network * (4 + cost.kept_copies)) + images + 300 * 2**20,
            disk_bytes=2 * kept + 2 * self.network,
            kept_bytes=kept,
            all_kept_bytes=kept * len(self.stages),
            note=cost.note,
        )


def _plain(problem: Problem) -> Method:
    with torch.device("meta"):
        return Method(problem)


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
