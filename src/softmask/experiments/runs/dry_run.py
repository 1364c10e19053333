"""A dry run: estimates the cost of a run or a grid by timing the first steps of the run itself. Two short tasks are
learned, saved and evaluated in a temporary folder. The method declares how the cost of later tasks grows
(`Method.cost`). Accurate to within a factor of two on an otherwise idle machine.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.grid import Cell
from softmask.experiments.runs.run import build, load
from softmask.experiments.runs.store import RunWriter, Store
from softmask.experiments.sequences import sequence_facts
from softmask.learning.device import CPU, exact, isolated_randomness, peak_memory, reset_peak_memory
from softmask.learning.fit import DivergedError
from softmask.learning.method import Cost, Method
from softmask.learning.protocol import learn_sequence
from softmask.learning.registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import Seeds
from softmask.learning.task import Batches, Task, TaskSequence

MIB = 2**20
FEW_TASKS, WARM_UP_BATCHES, TRAINING_BATCHES, OTHER_IMAGES = 2, 4, 16, 64
SECONDS_FOR_WARM_UP = 10.0
# An image of a validation set is only evaluated; a training image takes a backward pass and an update as well.
FORWARD = 1 / 3
# Epochs that the plateau schedule usually needs for a task on this network; 36 is the least that it can take.
USUAL_EPOCHS = 60
# For a method with a larger state, plain training is timed instead: saving the state would take too much memory and
# disk.
LARGE = 512 * MIB


@dataclass(frozen=True)
class Forecast:
    """An estimate."""

    steps: int
    seconds: float
    memory_bytes: int
    disk_bytes: int
    """Disk space while it runs."""
    kept_bytes: int
    """Disk space once it is finished, with the last checkpoint kept."""
    all_kept_bytes: int
    """The same with the checkpoints of all tasks."""
    note: str

    def lines(self) -> list[str]:
        hours, minutes = divmod(round(self.seconds / 60), 60)
        duration = f"{hours} h {minutes} min" if hours else f"{self.seconds / 60:.1f} min"
        return [
            f"steps   {self.steps:,} of one batch",
            f"time    {duration} on this machine, one thread, nothing else running",
            f"memory  {self.memory_bytes / MIB:,.0f} MiB",
            f"disk    {self.disk_bytes / MIB:,.0f} MiB (less once finished)",
            *([f"note    {self.note}"] if self.note else []),
        ]


@dataclass(frozen=True)
class Measured:
    """Cost of the last of a few short tasks, in seconds and bytes."""

    task: int
    """The task, counted from 1."""
    image: float
    """Learning from one image once."""
    end: float
    """The end of the task, for each of its training images."""
    evaluation: float
    """Evaluating one image."""
    event: float
    """Writing one event."""
    saving: float
    """Saving the state after one epoch."""
    memory_bytes: int
    """Of the whole process."""
    kept_bytes: int
    """Of the checkpoint."""
    line_bytes: int
    """Of one event."""


def forecast(config: RunConfig, sequence: TaskSequence) -> Forecast:
    """Times the first steps of a run and multiplies."""
    scenario = Scenario(sequence.input_shape, sequence.classes, config.network, config.seeds)
    with torch.device("meta"):  # only its plan is asked for, not its weights
        method, plain = METHODS.load(config.method)(scenario, config.method_settings()), Method(scenario)
    state = sum(tensor.nbytes for tensor in method.state_dict().values() if isinstance(tensor, Tensor))
    plan = _Plan(config, sequence, method, plain)
    if state <= LARGE:
        try:
            return plan.multiplied(measure(config, sequence, lambda: build(config, sequence)), type(method))
        except DivergedError:
            pass
    measured = measure(config, sequence, lambda: Method(scenario).to(sequence.device))
    return plan.multiplied(replace(measured, kept_bytes=max(measured.kept_bytes, state)), Method)


class _Plan:
    """The amount of work."""

    def __init__(self, config: RunConfig, sequence: TaskSequence, method: Method, plain: Method) -> None:
        self.sequence, self.scenario, self.tasks = sequence, method.scenario, len(sequence.tasks)
        self.stages = method.stages(sequence.tasks, config.training)
        self.cost = method.cost(self.scenario)
        self.epochs = method.adapted(config.training).epochs
        if config.training.schedule == "plateau":
            self.epochs = min(USUAL_EPOCHS, self.epochs)
        self.network = sum(parameter.nbytes for parameter in plain.parameters())
        heads = [sum(parameter.nbytes for parameter in head.parameters()) for head in plain.heads]
        self.copy = self.network - sum(heads) + max(heads)  # a copy that grows with the tasks has one head

    def multiplied(self, found: Measured, timed: type[Method]) -> Forecast:
        """From one task of the `timed` method to all tasks of the planned one."""
        early = self._cost_of_task(timed, found.task)
        slower, stages, epochs = self.cost.step / max(early.step, 1e-3), self.stages, self.epochs
        images, validation = (sum(getattr(stage, part).count for stage in stages) for part in ("train", "val"))
        ends = self.cost.task_end_passes / self.tasks
        end = found.end * ends / early.task_end_passes if early.task_end_passes > 0 else ends * found.image
        fits = self.cost.fits / early.fits  # the time of a task has all fits of the timed method in it
        evaluated, rows = total_evaluations(self.sequence.tasks, self.sequence.tests, stages)
        events = rows + len(stages) * (epochs + 1)
        seconds = fits * slower * found.image * epochs * (images + FORWARD * validation) + max(end, found.end) * images
        seconds += slower * found.evaluation * evaluated + found.event * events
        seconds += found.saving * len(stages) * (epochs + 1)
        growth = 0
        if self.cost.kept_copies or len(stages) == 1:  # else all tasks have their memory from the start
            growth = max(0, int(self.network + self.cost.kept_copies * self.copy) - found.kept_bytes)
        kept, lines = found.kept_bytes + growth, events * found.line_bytes
        return Forecast(
            steps=epochs * self.cost.fits * sum(len(stage.train) for stage in stages),
            seconds=seconds,
            memory_bytes=found.memory_bytes + 2 * growth,
            disk_bytes=3 * kept + lines,  # the last checkpoint, and the state of a task and at its best epoch
            kept_bytes=kept + lines,
            all_kept_bytes=(found.kept_bytes + growth // 2) * len(stages) + lines,
            note=self.cost.note,
        )

    def _cost_of_task(self, timed: type[Method], task: int) -> Cost:
        """For one task, counted from 1: `Cost` has the mean cost of a step and the sum of the task ends over all tasks
        up to it."""
        up_to = timed.cost(replace(self.scenario, classes=self.scenario.classes[:task]))
        if task == 1:
            return up_to
        before = timed.cost(replace(self.scenario, classes=self.scenario.classes[: task - 1]))
        return replace(
            up_to,
            step=task * up_to.step - (task - 1) * before.step,
            task_end_passes=up_to.task_end_passes - before.task_end_passes,
        )


class _TimedWriter:
    """A run's writer that also measures times."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.saving, self.events, self.event_seconds, self.evaluating = 0.0, 0, 0.0, 0.0
        self.task: dict[str, Any] = {}
        self._learned_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def event(self, kind: str, **facts: Any) -> None:
        start = time.perf_counter()
        self.writer.event(kind, **facts)
        now = time.perf_counter()
        self.events, self.event_seconds = self.events + 1, self.event_seconds + now - start
        if kind == "task":
            self.task, self._learned_at = facts, now
        elif kind == "accuracy":
            self.evaluating = now - self._learned_at

    def save_progress(self, stage: int, state: Any) -> None:
        start = time.perf_counter()
        self.writer.save_progress(stage, state)
        self.saving = time.perf_counter() - start


def measure(config: RunConfig, sequence: TaskSequence, make: Callable[[], Method]) -> Measured:
    """A few batches to warm up, which must suffice if they are slow, and then more."""
    start = time.perf_counter()
    found = _measured(config, sequence, make, WARM_UP_BATCHES)
    if time.perf_counter() - start > SECONDS_FOR_WARM_UP:
        return found
    return _measured(config, sequence, make, TRAINING_BATCHES)


def _measured(config: RunConfig, sequence: TaskSequence, make: Callable[[], Method], batches: int) -> Measured:
    training = replace(config.training, epochs=1, joint_epochs=1)
    tasks = [_short(task, batches * training.batch) for task in sequence.tasks[:FEW_TASKS]]
    tests = [_first(test, OTHER_IMAGES) for test in sequence.tests[:FEW_TASKS]]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, exact(sequence.device), isolated_randomness():
            method = make()
            for buffer in method.buffers():  # the system counts memory only once it was written to
                buffer.copy_(buffer.clone())
            reset_peak_memory()  # reading the data took memory that is free again
            with Store(folder).open(config) as writer:
                timed = _TimedWriter(writer)
                learn_sequence(method, tasks, training, timed, tests=tests)
            kept = sum(file.stat().st_size for file in (writer.path / "checkpoints").iterdir())
            lines = (writer.path / "events.jsonl").read_bytes()
    finally:
        torch.set_num_threads(threads)
    ids, event = timed.task["ids"], timed.event_seconds / timed.events
    learned = len(tasks)
    images, validation = sum(tasks[i].train.count for i in ids), sum(tasks[i].val.count for i in ids)
    evaluated = sum(task.val.count + test.count for task, test in zip(tasks, tests, strict=True))
    return Measured(
        task=learned,
        image=max(0.0, timed.task["learn_seconds"] - timed.saving - event) / (images + FORWARD * validation),
        end=timed.task["end_seconds"] / images,
        evaluation=max(0.0, timed.evaluating - event * learned) / evaluated,
        event=event,
        saving=timed.saving,
        memory_bytes=peak_memory() or 0,  # with the copies that live only while the state is saved
        kept_bytes=kept,
        line_bytes=len(lines) // timed.events,
    )


def _short(task: Task, images: int) -> Task:
    return replace(task, train=_first(task.train, images), val=_first(task.val, OTHER_IMAGES))


def _first(batches: Batches, count: int) -> Batches:
    images, labels = batches.images[:count], batches.labels[:count]
    return Batches(images, labels, batches.size, normalise=batches.normalise, device=batches.device)


def total_evaluations(tasks: Sequence[Task], tests: Sequence[Batches], stages: Sequence[Task]) -> tuple[int, int]:
    """The number of evaluated images and of evaluations: after each stage all tasks learned so far."""
    images = rows = 0
    learned: list[int] = []
    for stage in stages:
        learned += stage.ids
        images += sum(tasks[i].val.count + tests[i].count for i in learned)
        rows += len(learned)
    return images, rows


@dataclass(frozen=True)
class GridForecast:
    """An estimate for the rest of a grid."""

    cells: tuple[Cell, ...]
    jobs: int
    seconds: float
    """Time for all unfinished cells, with this many jobs at a time on machines like this one."""
    memory_bytes: int
    """Memory while the largest cells run side by side."""
    disk_bytes: int
    """Additional disk space."""
    unknown: dict[str, str]
    """Sequences that could not be measured, and why."""
    notes: dict[str, str]
    """Costs that grow with the number of tasks, by method."""

    def lines(self) -> list[str]:
        """One line for each method and sequence, then the sums."""
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.config.sequence, cell.config.method), []).append(cell)
        found = [f"{method} on {sequence}: {_by_state(cells)}" for (sequence, method), cells in groups.items()]
        hours, minutes = divmod(round(self.seconds / 60), 60)
        return [
            *found,
            f"cells   {len(self.cells)}: {_by_state(self.cells)}",
            f"time    {hours} h {minutes} min for what is not finished, {self.jobs} at a time on machines like this",
            f"memory  {self.memory_bytes / MIB:,.0f} MiB",
            f"disk    {self.disk_bytes / MIB:,.0f} MiB in addition",
            *(f"note    {method}: {note}" for method, note in self.notes.items()),
            *(f"note    no estimate for {sequence}: {reason}" for sequence, reason in self.unknown.items()),
        ]


def _by_state(cells: Sequence[Cell]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(cell.state for cell in cells).items())


def forecast_grid(
    cells: Sequence[Cell],
    store: Store,
    data: Path | None,
    *,
    jobs: int,
    keep: str = "last",
    device: torch.device = CPU,
    retry_failed: bool = False,
    watch: Callable[[str], None] | None = None,
) -> GridForecast:
    """Cells that differ only in their seeds are measured once; for a cell in progress, only the rest counts. `watch` is
    called with what is measured next, since a large grid takes minutes.
    """
    rest = [cell.config for cell in cells if cell.state not in ("finished", *(() if retry_failed else ("failed",)))]
    ways = {repr(config.with_seeds(Seeds())): config for config in reversed(rest)}
    known: dict[str, Forecast] = {}
    loaded: dict[tuple[str, int | None], TaskSequence] = {}
    unknown: dict[str, str] = {}
    for number, (way, config) in enumerate(reversed(ways.items()), start=1):
        if config.sequence in unknown:
            continue
        if watch is not None:
            watch(f"measuring {config.method} on {config.sequence} ({number} of {len(ways)})")
        try:
            name = config.sequence, config.tasks
            if name not in loaded:
                loaded.clear()  # cells come sequence by sequence: one in memory is enough
                loaded[name] = load(config, data).on(device)
            known[way] = forecast(config, loaded[name])
        except SoftmaskError as error:
            unknown[config.sequence] = str(error)
    keys = [(config, repr(config.with_seeds(Seeds()))) for config in rest]
    expected = [(known[key], _share_left(config, store)) for config, key in keys if key in known]
    kept = [each.kept_bytes if keep == "last" else each.all_kept_bytes for each, _ in expected]
    largest = sorted((each.memory_bytes for each, _ in expected), reverse=True)[:jobs]
    working = sorted((each.disk_bytes - each.kept_bytes for each, _ in expected), reverse=True)[:jobs]
    return GridForecast(
        cells=tuple(cells),
        jobs=jobs,
        seconds=sum(each.seconds * left for each, left in expected) / max(1, min(jobs, len(expected))),
        memory_bytes=sum(largest),
        disk_bytes=sum(kept) + sum(working),
        unknown=unknown,
        notes={config.method: known[key].note for config, key in keys if key in known and known[key].note},
    )


def _share_left(config: RunConfig, store: Store) -> float:
    """The share of the tasks that are not learned yet."""
    try:
        found = store.find(config)
    except SoftmaskError:
        return 1.0
    if found is None:
        return 1.0
    return 1.0 - found.stages_done() / (config.tasks or sequence_facts(config.sequence).tasks)
