"""What a run will take, before it starts: steps, time, memory, disk."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch
from torch import Tensor

from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.rehearsal import EARLY, FORWARD, Rehearsal, rehearse, total_looks
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.method import Cost, Method
from softmask.learning.method_registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, TaskSequence

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
    """From a rehearsal of the run's beginning, and of a later part if the method says that its cost grows."""
    scenario = Scenario(sequence.input_shape, sequence.classes, config.network, config.seeds)
    with torch.device("meta"):  # only its plan is asked for, not its weights
        method = METHODS.load(config.method)(scenario, config.method_settings())
    plan = _Plan(config, sequence, scenario, method)
    if sum(tensor.nbytes for tensor in method.state_dict().values() if isinstance(tensor, Tensor)) > LARGE:
        return plan.by_formula()
    try:
        # What is measured is the last stage; where there is only one, nothing went before it to warm up. A GPU's first
        # steps load its code.
        at_least = 2 if len(plan.stages) == 1 or sequence.device.type != "cpu" else 1
        return plan.from_rehearsal(rehearse(config, sequence, grows=plan.grows, at_least=at_least))
    except DivergedError:
        return plan.by_formula()


class _Plan:
    """How much there is to do."""

    def __init__(self, config: RunConfig, sequence: TaskSequence, scenario: Scenario, method: Method) -> None:
        self.config, self.sequence, self.scenario, self.method_class = config, sequence, scenario, type(method)
        self.stages = method.stages(sequence.tasks, config.training)
        self.cost = method.cost(scenario)
        self.tasks = len(sequence.tasks)
        self.epochs = method.adapted(config.training).epochs
        if config.training.schedule == "plateau":
            self.epochs = min(USUAL_EPOCHS, self.epochs)
        plain = _plain(scenario)
        self.network = sum(parameter.nbytes for parameter in plain.parameters())
        heads = [sum(parameter.nbytes for parameter in head.parameters()) for head in plain.heads]
        self.copy = self.network - sum(heads) + max(heads)  # what grows with the tasks is no copy of all heads

    @property
    def steps(self) -> int:
        return self.epochs * self.cost.fits * sum(len(stage.train) for stage in self.stages)

    @property
    def grows(self) -> bool:
        """Whether a later task costs something else than an early one."""
        few = self._cost_of(EARLY)
        ends = (each.task_end_passes / each_of for each, each_of in ((self.cost, self.tasks), (few, EARLY)))
        return self.cost.step != few.step or len(set(ends)) > 1

    def from_rehearsal(self, found: Rehearsal) -> Forecast:
        stages, epochs = self.stages, self.epochs
        looks, rows = total_looks(self.sequence.tasks, self.sequence.tests, stages)
        events = rows + len(stages) * (epochs + 1)
        growth = self._kept_growth(found)
        lines = rows * found.row_bytes + (events - rows) * found.event_bytes
        kept = found.kept_bytes + growth
        # Of a joint training all heads are saved, where a rehearsal has a few: as they are and at their best after an
        # epoch, and once more in the checkpoint, before the former are removed.
        working = max(found.working_bytes, 3 * kept if len(stages) == 1 else 0)
        return Forecast(
            steps=self.steps,
            seconds=self._learning(found)
            + self._looking(found, looks)
            + found.event * events
            + found.saving * len(stages) * (epochs + 1),
            memory_bytes=found.memory_bytes + 2 * growth,
            disk_bytes=max(working + 2 * growth, kept) + lines,
            kept_bytes=kept + lines,
            all_kept_bytes=(found.kept_bytes + growth // 2) * len(stages) + lines,
            note=self.cost.note,
        )

    def _learning(self, found: Rehearsal) -> float:
        """Seconds for the steps and the ends of all tasks."""
        images = sum(stage.train.count for stage in self.stages)
        learned = self.epochs * (images + FORWARD * sum(stage.val.count for stage in self.stages))
        image = _at(self.cost.step, [(self._step_of(each.task), each.image) for each in found.stages])
        ends = self.cost.task_end_passes / self.tasks
        end = _at(ends, [(self._end_of(each.task), each.end) for each in found.stages])
        return image * learned + end * images

    def _looking(self, found: Rehearsal, looks: int) -> float:
        """Seconds for all evaluations. Later tasks that are dearer to learn may be so to look at, as with columns."""
        by_task = [(self._cost_of(each.task).step, each.look) for each in found.stages]
        means = [_at(self._cost_of(1 + done).step, by_task) for done in range(self.tasks)]
        return looks * sum((1 + done) * look for done, look in enumerate(means)) / sum(range(1, 1 + self.tasks))

    def _kept_growth(self, found: Rehearsal) -> int:
        """Bytes that the last checkpoint has more. Often there is room for all tasks from the start: it was weighed."""
        if not self.cost.kept_copies and len(self.stages) > 1:
            return 0
        return max(0, int(self.network + self.cost.kept_copies * self.copy) - found.kept_bytes)

    def _step_of(self, task: int) -> float:
        """Of this task, counted from 1: a cost tells the mean over all up to it."""
        return task * self._cost_of(task).step - ((task - 1) * self._cost_of(task - 1).step if task > 1 else 0.0)

    def _end_of(self, task: int) -> float:
        return self._cost_of(task).task_end_passes - (self._cost_of(task - 1).task_end_passes if task > 1 else 0.0)

    def _cost_of(self, tasks: int) -> Cost:
        return self.method_class.cost(replace(self.scenario, classes=self.scenario.classes[:tasks]))

    def by_formula(self) -> Forecast:
        """Where a rehearsal would take too much itself: plain training is timed, the method's costs do the rest."""
        cost, sequence = self.cost, self.sequence
        passes = self.epochs * cost.fits * cost.step + cost.task_end_passes / len(sequence.tasks)
        trained = passes * sum(stage.train.count for stage in self.stages)
        images = sum(task.train.images.nbytes + task.val.images.nbytes for task in sequence.tasks)
        images += sum(test.images.nbytes for test in sequence.tests)
        torch.manual_seed(derive(self.config.seeds.init, "weights"))
        kept = int(self.network * (1 + cost.kept_copies))
        return Forecast(
            steps=self.steps,
            seconds=trained * _seconds_an_image(Method(self.scenario).to(sequence.device), sequence, self.config),
            # The network, its gradients, the best state so far and the one that is being saved; then what is kept.
            memory_bytes=int(self.network * (4 + cost.kept_copies)) + images + 300 * 2**20,
            disk_bytes=2 * kept + 2 * self.network,
            kept_bytes=kept,
            all_kept_bytes=kept * len(self.stages),
            note=cost.note,
        )


def _at(told: float, measured: Sequence[tuple[float, float]]) -> float:
    """The method's costs tell how it grows, `measured` what that means here: pairs of what was told and what it took.

    The line through them, where what costs more by the formula costs more; else what they took on average.
    """
    mean_told, mean = (fmean(values) for values in zip(*measured, strict=True))
    spread = sum((each - mean_told) ** 2 for each, _ in measured)
    if math.isclose(spread, 0.0, abs_tol=1e-12):
        return mean
    slope = sum((each - mean_told) * (took - mean) for each, took in measured) / spread
    return max(0.0, mean + max(0.0, slope) * (told - mean_told))


def _plain(scenario: Scenario) -> Method:
    with torch.device("meta"):
        return Method(scenario)


def _seconds_an_image(plain: Method, sequence: TaskSequence, config: RunConfig) -> float:
    """Times a few steps of plain training, the unit of all costs."""
    task, size = sequence.tasks[0], config.training.batch
    images, labels = task.train.images[: 8 * size], task.train.labels[: 8 * size]
    part = Batches(images, labels, size, normalise=task.train.normalise, device=sequence.device)
    plain.begin_task(task)
    fit = Fit(plain, replace(task, train=part), config.training)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    fit.train_epoch()  # the first pass warms up
    start = time.perf_counter()
    fit.train_epoch()
    torch.set_num_threads(before)
    return (time.perf_counter() - start) / part.count
