"""Quality of the features: a new linear classifier for another dataset on the frozen backbone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.experiments.analyses.grouping import Group, gathered, sequence_order
from softmask.experiments.analyses.table import INTERVALS, Row, Table, Value, slope
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.run import load_from_checkpoint, require_checkpoint
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import load_sequence
from softmask.learning.device import isolated_randomness
from softmask.learning.evaluation import EVALUATION_BATCH, accuracy
from softmask.learning.fit import Fit
from softmask.learning.masked_weights import masked, weights_of
from softmask.learning.method import Method
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, Task, TaskSequence, sample_digest
from softmask.learning.unit_gates import gated
from softmask.methods.cat import Readout
from softmask.methods.hat import HAT
from softmask.methods.wsn import WSN

METHODS = ("ncl", "spg", "hat", "wsn")
ONTO = {"C-10": "T-10", "I-100": "C-10", "T-10": "C-10", "D-5": "R-10"}
"""The paper's pairs, and one of built-in data: learned as tasks, then tested on this dataset as one task."""
REST = "rest"
"""The classes of the tasks that a run with `--tasks` did not learn, as one task."""


@dataclass(frozen=True)
class Curve:
    """Accuracy on the other dataset by the number of tasks learned."""

    group: Group
    onto: str
    union: bool
    points: dict[int, Value]
    slopes: tuple[float, ...]
    """Of each seed, from the first task on."""


def usual_target(config: RunConfig) -> str:
    if config.tasks is not None:
        return REST
    if config.sequence not in ONTO:
        raise SoftmaskError(f"{config.sequence} has no default for --onto: name a sequence")
    return ONTO[config.sequence]


def measure_representation(
    run: StoredRun, store: Store, data: Path | None, onto: str | None = None, union: bool = False
) -> int:
    """Adds missing results to the run's events; returns their number. Needs the checkpoints of all tasks."""
    onto = onto or usual_target(run.config)
    tasks = len(run.events("task"))
    known = {e["learned"] for e in run.events("representation") if (e["onto"], e["union"]) == (onto, union)}
    missing = [learned for learned in range(tasks + 1) if learned not in known]
    for learned in filter(None, missing):
        require_checkpoint(run, learned)
    if not missing:
        return 0
    task, test = target(run.config, onto, data)
    with store.open(run.config) as writer:
        for learned in missing:
            method, _ = load_from_checkpoint(run, learned, data)
            reached = linear_accuracy(method, learned, task, test, run.config, union)
            writer.event("representation", onto=onto, union=union, learned=learned, classes=task.classes, test=reached)
    return len(missing)


def target(config: RunConfig, onto: str, data: Path | None) -> tuple[Task, Batches]:
    """The other dataset as one task, and its test set."""
    own = load_sequence(config.sequence, data, config.seeds)
    if onto == REST:
        if config.tasks is None:
            raise SoftmaskError(f"a run of all {len(own.tasks)} tasks has no classes left: use a run with --tasks")
        left = replace(own, tasks=own.tasks[config.tasks :], tests=own.tests[config.tasks :])
        return undivided(left)
    other = load_sequence(onto, data, config.seeds)
    if other.input_shape != own.input_shape:
        raise SoftmaskError(f"{onto} has images of shape {other.input_shape}, {config.sequence} of {own.input_shape}")
    return undivided(other)


def undivided(sequence: TaskSequence) -> tuple[Task, Batches]:
    """All tasks as one. Similar tasks share their classes; those of dissimilar ones are numbered consecutively."""
    shifts = [0] * len(sequence.tasks)
    if not sequence.similar:
        shifts = [sum(sequence.classes[:index]) for index in range(len(sequence.tasks))]
    classes = max(shift + task.classes for shift, task in zip(shifts, sequence.tasks, strict=True))
    train, val, test = (
        _joined(parts, shifts)
        for parts in (
            [task.train for task in sequence.tasks],
            [task.val for task in sequence.tasks],
            sequence.tests,
        )
    )
    name = f"{sequence.name} undivided #{sample_digest(train.labels.tolist())}"
    return Task((0,), name, classes, train, val), test


def _joined(parts: Sequence[Batches], shifts: Sequence[int]) -> Batches:
    labels = torch.cat([part.labels + shift for part, shift in zip(parts, shifts, strict=True)])
    images = torch.cat([part.images for part in parts])
    return Batches(images, labels, parts[0].size, normalise=parts[0].normalise)


def linear_accuracy(
    method: Method, learned: int, task: Task, test: Batches, config: RunConfig, union: bool = False
) -> float:
    """Test accuracy of one linear head, trained as the run's tasks were, on frozen features.

    Dropout of the backbone is off, so the features are computed once.
    """
    training, seeds = config.training, config.seeds
    with isolated_randomness():
        torch.manual_seed(derive(seeds.batches, "representation", task.name))
        train, val, tested = (_features(method, part, learned, union) for part in (task.train, task.val, test))
        width = train.images.size(1)
        head = Readout(Scenario((width, 1, 1), (task.classes,), config.network, seeds))
        order = derive(seeds.batches, task.name)
        seen = replace(task, train=train.mixed(order), val=val)
        seen = seen.batched(training.batch, shuffle=training.shuffle, seed=order)
        Fit(head, seen, training).run().restore_best()
        return accuracy(head, tested, 0)


@torch.no_grad()
def _features(method: Method, batches: Batches, learned: int, union: bool) -> Batches:
    seen = [features_after(method, x, learned, union) for x, _ in batches.batched(EVALUATION_BATCH)]
    return Batches(torch.cat(seen), batches.y, batches.size)


def features_after(method: Method, x: Tensor, learned: int, union: bool) -> Tensor:
    """Features of the last learned task; with `union`, through all units or weights that any learned task uses.

    Before the first task, a gated or masked method shows the features with which its first task would begin.
    """
    if union and learned and isinstance(method, HAT):
        return gated(method.backbone, x, method.by_layer(method.used))
    if union and learned and isinstance(method, WSN):
        weights = weights_of(method.backbone)
        effective = {f"{n}.layer.weight": masked(weights[n], mask) for n, mask in method.masks.union().items()}
        return torch.func.functional_call(method.backbone, effective, (x,))
    return method.features(x, max(0, learned - 1))


def representation_curves(runs: Iterable[StoredRun]) -> list[Curve]:
    """Measured curves, averaged over seeds."""
    curves = []
    for group in gathered(runs).groups:
        events = [event for run in group.runs for event in run.events("representation")]
        for onto, union in sorted({(event["onto"], event["union"]) for event in events}):
            by_seed = [_measured(run, onto, union) for run in group.runs]
            learned = sorted({number for points in by_seed for number in points})
            averaged = {n: value for n in learned if (value := Value.of(points.get(n) for points in by_seed))}
            slopes = (slope([points[n] for n in sorted(points) if n]) for points in by_seed)
            curves.append(Curve(group, onto, union, averaged, tuple(each for each in slopes if each is not None)))
    return curves


def _measured(run: StoredRun, onto: str, union: bool) -> dict[int, float]:
    """Accuracy in percent by the number of tasks learned."""
    events = (event for event in run.events("representation") if (event["onto"], event["union"]) == (onto, union))
    return {event["learned"]: 100 * event["test"] for event in events}


def representation(runs: Iterable[StoredRun]) -> Table:
    """A row for each method, a column for each number of tasks learned before."""
    curves = sorted(representation_curves(runs), key=lambda curve: (*sequence_order(curve.group.sequence), curve.onto))
    longest = max((max(curve.points) for curve in curves), default=-1)
    rows: list[Row] = [
        (
            *(curve.group.sequence, curve.onto, curve.group.title),
            "union of all tasks" if curve.union else "last task",
            *(curve.group.training, curve.group.changed, Value.with_interval(curve.slopes, digits=2)),
            *map(curve.points.get, range(longest + 1)),
        )
        for curve in curves
    ]
    note = (
        "The backbone is frozen after the first N tasks of the sequence; a linear head learns the second dataset as "
        "one task, with the same training. 0: the initial weights. Slope: percentage points from one task to the "
        f"next, from the first task on, averaged over seeds, with {INTERVALS}."
    )
    return Table(
        "Accuracy of a new linear classifier on frozen features, in percent, by the number of tasks learned",
        ("learned", "then", "method", "features", "training", "changed", "slope", *map(str, range(longest + 1))),
        rows,
        [note],
        labels=4,
    )
