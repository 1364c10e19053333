"""The protocol: learn one task after another, and after each measure all that were learned so far."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from softmask.errors import SoftmaskError
from softmask.learning.device import peak_memory
from softmask.learning.evaluation import accuracy
from softmask.learning.fit import DivergedError, Fit, Fitter, State
from softmask.learning.method import Method
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training
from softmask.learning.without_id import WithoutId


class Journal(Protocol):
    """Records the events of a run and the state from which it resumes."""

    def event(self, kind: str, **facts: Any) -> None:
        """Records an event."""

    def stages_done(self) -> int:
        """The number of stages that are learned and saved."""

    def load_stage(self) -> State:
        """The method's state after the last saved stage."""

    def save_stage(self, stage: int, state: State) -> None:
        """Marks the stage as done."""

    def load_progress(self, stage: int) -> State | None:
        """The saved state of this stage, if it was interrupted."""

    def save_progress(self, stage: int, state: State) -> None:
        """Called after every epoch; the journal decides which it keeps."""


def learn_sequence(
    method: Method,
    tasks: Sequence[Task],
    training: Training,
    journal: Journal,
    *,
    tests: Sequence[Batches] | None,
    watch: Callable[[Task, Fit], None] | None = None,
    without_id: WithoutId | None = None,
) -> Method:
    """Learns the stages that are missing. Without `tests`, only validation accuracies are measured. With `without_id`,
    which holds earlier measurements, accuracies without a task id are measured too.
    """
    stages = method.stages(tasks, training)
    _require_once(method, stages)
    done = journal.stages_done()
    if done:
        method.load_state_dict(journal.load_stage())
    for stage in range(done, len(stages)):
        task = stages[stage]
        # The draws of a task depend on the seed and the task, not on earlier tasks: there is no state to carry over.
        torch.manual_seed(derive(method.scenario.seeds.batches, "learn", task.name))
        _learn_stage(method, task, stage, training, journal, watch)
        learned = sorted(i for earlier in stages[: stage + 1] for i in earlier.ids)
        _measure(method, tasks, learned, task.id, journal, tests)
        if without_id is not None:
            _measure_without_id(without_id, method, tasks, task.ids, learned, task.id, journal, tests)
            if stage + 1 < len(stages):
                without_id.save(stage)
        journal.save_stage(stage, method.state_dict())
    return method


def _require_once(method: Method, stages: Sequence[Task]) -> None:
    """Each task may be learned only once; otherwise its accuracy "when learned" is not defined."""
    for task, times in Counter(task for stage in stages for task in stage.ids).items():
        if times > 1:
            raise SoftmaskError(
                f"{type(method).__name__}.stages has task {task} {times} times; each may stand there once"
            )


def _learn_stage(
    method: Method,
    task: Task,
    stage: int,
    training: Training,
    journal: Journal,
    watch: Callable[[Task, Fit], None] | None,
) -> None:
    def note_epoch(fit: Fit) -> None:
        # Counted over all Fits of the task: two candidates of the same age are two epochs.
        journal.event("epoch", task=task.id, epoch=fitter.epochs - 1, seconds=time.monotonic() - start, **fit.last)
        if watch is not None:
            watch(task, fit)

    saved = journal.load_progress(stage)
    start = time.monotonic() - (saved or {}).get("seconds", 0.0)
    if 0 not in task.ids:
        method.settle_statistics(task)
    method.begin_task(task)
    fitter = Fitter(
        method,
        task,
        training,
        save=lambda state: journal.save_progress(stage, state | {"seconds": time.monotonic() - start}),
        saved=saved,
        watch=note_epoch,
    )
    method.learn(task, fitter)
    fitter.close()
    method.settle_statistics(task)
    learned = time.monotonic()
    facts = end_task(method, task)
    journal.event(
        "task",
        task=task.id,
        ids=list(task.ids),
        name=task.name,
        classes=task.classes,
        learn_seconds=learned - start,
        end_seconds=time.monotonic() - learned,
        images=task.train.count,
        peak_memory=peak_memory(),
        facts=facts,
    )


def end_task(method: Method, task: Task) -> dict[str, Any]:
    """Importance, masks and whatever else a method computes once a task is learned; returns the facts it reports."""
    method.eval()
    try:
        facts = method.end_task(task) or {}
    except FloatingPointError as error:  # finite losses, but a gradient that is not
        raise DivergedError(f"training on {task.name} diverged: {error}") from error
    for name, value in facts.items():
        try:
            json.dumps({name: value})
        except (TypeError, ValueError) as error:
            message = f"{type(method).__name__}.end_task returned a fact {name!r} that cannot be written down: {error}"
            raise SoftmaskError(f"{message}; facts are numbers, text, lists and dictionaries") from None
    method.zero_grad(set_to_none=True)
    return facts


def _measure(
    method: Method,
    tasks: Sequence[Task],
    learned: Sequence[int],
    after: int,
    journal: Journal,
    tests: Sequence[Batches] | None,
) -> None:
    """One row of the accuracy matrix: every task learned so far is evaluated again, never copied."""
    validation = {task.id: task.val for task in tasks}  # a model folder has the data of its newest task only
    for i in learned:
        measured = {"validation": accuracy(method, validation[i], i)}
        if tests is not None:
            measured["test"] = accuracy(method, tests[i], i)
        journal.event("accuracy", after=after, task=i, **measured)


def _measure_without_id(
    without_id: WithoutId,
    method: Method,
    tasks: Sequence[Task],
    ids: Sequence[int],
    learned: Sequence[int],
    after: int,
    journal: Journal,
    tests: Sequence[Batches] | None,
) -> None:
    without_id.learn(method, [task for task in tasks if task.id in ids])
    if not without_id.wanted(method, learned):
        return
    validation = {task.id: task.val for task in tasks}
    found = {"validation": without_id.accuracies(method, {i: validation[i] for i in learned})}
    if tests is not None:
        found["test"] = without_id.accuracies(method, {i: tests[i] for i in learned})
    for i in learned:
        journal.event("without_id", after=after, task=i, **{part: rules[i] for part, rules in found.items()})
