"""A small part of a run, done for real and timed: a few tasks, a few batches each, one epoch, saved and all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median_low
from typing import Any

import torch

from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.run import build
from softmask.experiments.runs.store import RunWriter, Store
from softmask.learning.device import exact, random_apart
from softmask.learning.memory_use import forget_peak, peak_memory
from softmask.learning.protocol import learn_sequence
from softmask.learning.task import Batches, Task, TaskSequence

TRAINING_BATCHES, MORE_BATCHES, OTHER_IMAGES = 4, 16, 64
SECONDS, REPEATS = 2.0, 6
# So many tasks; then, where the method grows dearer, as many as can be done in a while: more where they are quick.
EARLY, LATER, LATER_IF_QUICK = 2, 5, 12
# A validation image is only looked at; a training image is looked at, traced back and learned from.
FORWARD = 1 / 3


@dataclass(frozen=True)
class Stage:
    """What one rehearsed task took, in seconds."""

    task: int
    """Counted from 1."""
    image: float
    """Learning from one image once."""
    end: float
    """The end of the task, for each of its training images."""
    look: float
    """Evaluating one image, the mean over the tasks up to this one."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal took, in seconds and bytes."""

    stages: tuple[Stage, ...]
    event: float
    """Writing down one event."""
    saving: float
    """Saving the state after one epoch."""
    memory_bytes: int
    """Of the whole process."""
    kept_bytes: int
    """Of the run's folder when it is finished."""
    working_bytes: int
    """At most while it runs."""
    row_bytes: int
    """Of the line for one accuracy."""
    event_bytes: int
    """Of any other line."""


class _Watched:
    """A run's writer with a clock and a balance beside it."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.saving, self.events, self.event_seconds, self.working_bytes = 0.0, 0, 0.0, 0
        self.tasks: list[dict[str, Any]] = []
        self.evaluated: list[float] = []
        self.learned_at = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.writer, name)

    def event(self, kind: str, **facts: Any) -> None:
        start = time.perf_counter()
        self.writer.event(kind, **facts)
        now = time.perf_counter()
        self.events, self.event_seconds = self.events + 1, self.event_seconds + now - start
        if kind == "task":
            self.tasks.append(facts | {"saving": self.saving})
            self.evaluated.append(0.0)
            self.learned_at = now
        elif kind == "accuracy":
            self.evaluated[-1] = now - self.learned_at

    def save_progress(self, stage: int, state: Any) -> None:
        start = time.perf_counter()
        self.writer.save_progress(stage, state)
        self.saving = time.perf_counter() - start
        self.working_bytes = max(self.working_bytes, _bytes_in(self.writer.path))

    def save_stage(self, stage: int, state: Any) -> None:
        before = _bytes_in(self.writer.path)  # nothing of it is removed until the new checkpoint is whole
        self.writer.save_stage(stage, state)
        newest = max((self.writer.path / "checkpoints").iterdir())
        self.working_bytes = max(self.working_bytes, before + newest.stat().st_size)


def rehearse(config: RunConfig, sequence: TaskSequence, *, grows: bool = False, at_least: int = 1) -> Rehearsal:
    """The beginning, several times where one is over in a moment. Then, if the method `grows`, more tasks.

    What a rehearsal takes varies, and the first warms up.
    """
    start = time.perf_counter()
    found: list[Rehearsal] = []
    while len(found) < at_least or (len(found) < REPEATS and time.perf_counter() - start < SECONDS):
        # More batches where there is time: what a task's end costs once, however many images, is then not overrated.
        found.append(_rehearsed(config, sequence, EARLY, MORE_BATCHES if found else TRAINING_BATCHES))
    quick, warm = len(found) > at_least, found[1:] or found
    stages = [each.stages[-1] for each in warm]
    if grows and len(sequence.tasks) > EARLY:
        tasks, batches = (LATER_IF_QUICK, MORE_BATCHES) if quick else (LATER, TRAINING_BATCHES)
        stages += _rehearsed(config, sequence, tasks, batches).stages[1:]
    return _typical(warm, stages)


def _typical(found: Sequence[Rehearsal], stages: Sequence[Stage]) -> Rehearsal:
    """Of times the mean, since a long run meets what disturbs them as often; of sizes the middle."""
    values = {field.name: [getattr(each, field.name) for each in found] for field in fields(Rehearsal)}
    del values["stages"]
    typical: dict[str, Any] = {
        name: (fmean if isinstance(of[0], float) else median_low)(of) for name, of in values.items()
    }
    return Rehearsal(stages=tuple(stages), **typical)


def _rehearsed(config: RunConfig, sequence: TaskSequence, count: int, batches: int) -> Rehearsal:
    """So many tasks, or all, of so many batches each."""
    training = replace(config.training, epochs=1, joint_epochs=1)
    tasks = [_short(task, batches * training.batch) for task in sequence.tasks[:count]]
    tests = [_first(test, OTHER_IMAGES) for test in sequence.tests[:count]]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, exact(sequence.device), random_apart():
            method = build(config, sequence)
            for buffer in method.buffers():  # the system counts memory only once it was written to
                buffer.copy_(buffer.clone())
            forget_peak()  # what was held before, as while reading the data, is no part of it
            with Store(folder).open(config) as writer:
                watched = _Watched(writer)
                learn_sequence(method, tasks, training, watched, tests=tests)
            kept, told = _bytes_in(writer.path), (writer.path / "events.jsonl").read_text().splitlines(keepends=True)
    finally:
        torch.set_num_threads(threads)
    return Rehearsal(
        stages=tuple(_stages(watched, tasks, tests)),
        event=watched.event_seconds / watched.events,
        saving=watched.saving,
        memory_bytes=peak_memory() or 0,  # with the copies that live only while the state is saved
        kept_bytes=kept - sum(map(len, told)),
        working_bytes=watched.working_bytes - sum(map(len, told)),
        row_bytes=_mean_length([line for line in told if '"accuracy"' in line[:24]]),
        event_bytes=_mean_length([line for line in told if '"accuracy"' not in line[:24]]),
    )


def _stages(watched: _Watched, tasks: Sequence[Task], tests: Sequence[Batches]) -> Iterator[Stage]:
    event = watched.event_seconds / watched.events
    learned: list[int] = []
    for facts, evaluated in zip(watched.tasks, watched.evaluated, strict=True):
        learned += facts["ids"]
        images = sum(tasks[i].train.count for i in facts["ids"])
        passes = images + FORWARD * sum(tasks[i].val.count for i in facts["ids"])
        looked_at = sum(tasks[i].val.count + tests[i].count for i in learned)
        yield Stage(
            task=len(learned),
            image=max(0.0, facts["learn_seconds"] - facts["saving"] - event) / passes,
            end=facts["end_seconds"] / images,
            look=max(0.0, evaluated - event * len(learned)) / looked_at,
        )


def _short(task: Task, images: int) -> Task:
    return replace(task, train=_first(task.train, images), val=_first(task.val, OTHER_IMAGES))


def _first(batches: Batches, count: int) -> Batches:
    images, labels = batches.images[:count], batches.labels[:count]
    return Batches(images, labels, batches.size, normalise=batches.normalise, device=batches.device)


def _mean_length(lines: list[str]) -> int:
    return sum(map(len, lines)) // len(lines)


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def total_looks(tasks: Sequence[Task], tests: Sequence[Batches], stages: Sequence[Task]) -> tuple[int, int]:
    """How many images are evaluated in all, and in how many rows: after each stage all tasks learned so far."""
    looks = rows = 0
    learned: list[int] = []
    for stage in stages:
        learned += stage.ids
        looks += sum(tasks[i].val.count + tests[i].count for i in learned)
        rows += len(learned)
    return looks, rows
