"""The contract that every method must pass, for the tests of other packages too.

    import pytest
    from softmask.testing import METHOD_CHECKS

    @pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
    def test_my_method(check, tmp_path):
        check("my-method", tmp_path)

Every check runs a small network on built-in data (D-5) through the same `run` that users call.
"""

from __future__ import annotations

import contextlib
import pickle
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softmask.core.answers import evaluating
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.run import build, load, run
from softmask.experiments.runs.store import Listener, Store, StoredRun
from softmask.learning.method import Method
from softmask.learning.protocol import learn_sequence
from softmask.learning.registry import METHODS
from softmask.learning.task import Task, TaskSequence

SMALL = {"network.width": 1 / 16, "training.epochs": 2, "training.joint_epochs": 2}
LONG_ENOUGH = {
    "network.width": 1 / 4,
    "training.epochs": 20,
    "training.batch": 16,
    "training.joint_epochs": 20,
    "training.joint_batch": 32,
}


class Interruption(Exception):
    """Simulates a kill in the middle of a run."""


class InMemoryJournal:
    """A journal that keeps everything in memory and can interrupt the run."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.states: list[dict[str, Any]] = []

    def event(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))

    def stages_done(self) -> int:
        return len(self.states)

    def load_stage(self) -> dict[str, Any]:
        return self.states[-1]

    def save_stage(self, stage: int, state: dict[str, Any]) -> None:
        self.states.append({name: _copied(value) for name, value in state.items()})

    def load_progress(self, stage: int) -> None:
        return None

    def save_progress(self, stage: int, state: dict[str, Any]) -> None:
        return None


class MemoryMeter(InMemoryJournal):
    """Measures after every epoch and task all tensors and arrays that the method holds or saves."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method, self.largest = method, 0
        self.by_epoch: dict[tuple[Any, ...], list[int]] = {}
        """State bytes after each epoch, separately for each task and each set of Fits."""

    def save_progress(self, stage: int, state: dict[str, Any]) -> None:
        held = self._measure(state)
        self.by_epoch.setdefault((stage, *state["fits"]), []).append(held)

    def save_stage(self, stage: int, state: dict[str, Any]) -> None:
        super().save_stage(stage, state)
        self._measure(state)

    def _measure(self, state: dict[str, Any]) -> int:
        held = _held_bytes([self.method, state], set())
        self.largest = max(self.largest, held)
        return held

    def grew_within_a_fit(self) -> bool:
        """From the second epoch on, when everything that a Fit needs has been allocated."""
        return any(max(held[1:]) > held[1] for held in self.by_epoch.values() if len(held) > 1)


def check_same_seed_same_bits(name: str, folder: Path) -> None:
    """Two runs with equal configs end with equal weights; another seed ends with others."""
    config = _small(name)
    first, second = (run(config, Store(folder / place)) for place in ("first", "second"))
    assert _digest(first) == _digest(second), (
        f"{name}: equal seeds, other weights: something draws from a generator that a run does not seed (Python's, "
        "NumPy's, one made anew without a seed), or depends on an earlier run in the same process"
    )
    other = run(_small(name, seed=2), Store(folder / "other"))
    assert _digest(first) != _digest(other), f"{name}: seeds 1 and 2 end with equal weights: the seed is not used"


def check_interrupted_equals_uninterrupted(name: str, folder: Path) -> None:
    """A run that is interrupted and resumed after every epoch and task ends with the weights of an uninterrupted one.
    It uses the paper's schedule, whose learning rates depend on the losses.
    """
    changes = SMALL | {"training.schedule": "plateau", "training.patience": 1, "training.epochs": 3}
    config = make_config(name, "D-5", preset="short", tasks=3, changes=changes)
    whole, store = run(config, Store(folder / "whole")), Store(folder / "cut")
    for _ in range(len(whole.events("epoch")) + len(whole.events("task"))):
        with contextlib.suppress(Interruption):
            run(config, store, listeners=[_interrupt_after(1)])
    resumed = run(config, store)
    assert (_digest(resumed), resumed.accuracies()) == (_digest(whole), whole.accuracies()), (
        f"{name}: interrupted after every epoch and task, a run ended otherwise than one that was not: something "
        "it needs is neither in `state_dict()` (a plain list or attribute is not) nor in the `notes` of a Fitter"
    )


def check_state_is_complete(name: str, folder: Path) -> None:
    """A method rebuilt from a checkpoint gives the same answers as the one that wrote it, for every task."""
    config = _small(name)
    sequence = load(config, None)
    method = build(config, sequence)
    journal = InMemoryJournal()
    learn_sequence(method, sequence.tasks, config.training, journal, tests=None)
    rebuilt = build(config, sequence)
    rebuilt.load_state_dict(journal.load_stage())
    for task in range(len(sequence.tasks)):
        assert torch.equal(_logits(method, sequence, task), _logits(rebuilt, sequence, task)), (
            f"{name}: rebuilt from its checkpoint, it answers otherwise for task {task}: something that it answers "
            "with is not in `state_dict()`: use parameters, buffers or `get_extra_state`"
        )


def check_answering_changes_nothing(name: str, folder: Path) -> None:
    """Prediction, also on test images, does not change the method, and repeated predictions are equal."""
    config = _small(name, tasks=2)
    sequence = load(config, None)
    method, journal = build(config, sequence), InMemoryJournal()
    learn_sequence(method, sequence.tasks, config.training, journal, tests=None)
    for task in range(len(sequence.tasks)):
        first, second = (_logits(method, sequence, task) for _ in range(2))
        assert torch.equal(first, second), f"{name}: asked twice about the same images of task {task}, it differs"
    state = method.state_dict()
    changed = [key for key, tensor in _tensors(journal.load_stage()).items() if not torch.equal(tensor, state[key])]
    assert not changed, f"{name}: answering changed {', '.join(changed)}: it would learn from test images"


def check_old_heads_stay(name: str, folder: Path) -> None:
    """Learning a task does not change the heads of other tasks, to the bit, unless the method has `moves_old_heads`."""
    if METHODS.load(name).moves_old_heads:
        return
    config = _small(name)
    before = _heads(build(config, load(config, None)))
    assert before, "no ModuleList called `heads`: whoever has other heads says so by `moves_old_heads = True`"
    for method, task in _after_each_task(config):
        now = _heads(method)
        for (place, index), state in now.items():
            if index not in task.ids:
                same = all(torch.equal(tensor, before[place, index][key]) for key, tensor in state.items())
                assert same, f"{place}[{index}] changed while task {task.id} was learned"
        before = now


def check_promise_of_not_forgetting(name: str, folder: Path) -> None:
    """If a method has `never_forgets`, the logits of every old task stay the same, to the bit."""
    if not METHODS.load(name).never_forgets:
        return
    config = _small(name, tasks=None)
    sequence = load(config, None)
    remembered: dict[int, Tensor] = {}
    for method, task in _after_each_task(config):
        remembered[task.id] = _logits(method, sequence, task.id)
        for old, logits in remembered.items():
            assert torch.equal(_logits(method, sequence, old), logits), (
                f"task {old} changed while {task.id} was learned"
            )


def check_memory_does_not_grow_with_steps(name: str, folder: Path) -> None:
    """A Fit of six epochs holds no more after the last epoch than after the second, in the method and in the saved
    state. A run with six epochs per task holds no more than one with two, except for one percent of state that depends
    on the weights, such as the number of directions of a projection.
    """
    largest = []
    for epochs in (2, 6):
        changes = SMALL | {"training.epochs": epochs, "training.joint_epochs": epochs}
        config = make_config(name, "D-5", preset="short", tasks=2, changes=changes)
        sequence = load(config, None)
        meter = MemoryMeter(build(config, sequence))
        learn_sequence(meter.method, sequence.tasks, config.training, meter, tests=None)
        largest.append(meter.largest)
        assert not meter.grew_within_a_fit(), (
            f"{name}: tensors and arrays hold more after the last epoch of a Fit than after its second: something is "
            "kept for every step or epoch"
        )
    assert 0 < largest[1] <= 1.01 * largest[0], (
        f"{name}: tensors and arrays hold {largest[0]:,} bytes when a task has 2 epochs, {largest[1]:,} when it has 6: "
        "something is kept for every step or epoch"
    )


def check_learns(name: str, folder: Path) -> None:
    """After two tasks of D-5, accuracy is clearly above chance (50 %) even after forgetting. The threshold is low,
    since the result of a single seed depends on rounding.
    """
    config = make_config(name, "D-5", preset="short", tasks=2, changes=LONG_ENOUGH)
    accuracies = run(config, Store(folder), checkpoint_every=config.training.epochs).accuracies()
    for task in (0, 1):
        learned = next(row[task] for row in accuracies.values() if task in row)
        assert learned > 70, f"{name}: task {task} of D-5 was learned to {learned:.1f} percent; 50 is chance"
    left = average_accuracy(accuracies)
    assert left > 65, f"{name}: {left:.1f} percent are left of two tasks of D-5; 50 is chance"


def check_task_ends_draw_apart(name: str, folder: Path) -> None:
    """`end_task` leaves the global random generators (torch, NumPy, Python) as they were."""
    config = _small(name, tasks=2)
    sequence = load(config, None)
    method = build(config, sequence)
    end_task, changed = method.end_task, set[str]()

    def watched(task: Task) -> Any:
        before = _global_generators()
        facts = end_task(task)
        changed.update(kind for kind, state in _global_generators().items() if state != before[kind])
        return facts

    method.end_task = watched  # type: ignore[method-assign]
    learn_sequence(method, sequence.tasks, config.training, InMemoryJournal(), tests=None)
    assert not changed, (
        f"{name}: end_task draws from the global generator of {' and '.join(sorted(changed))}: draw from torch's under "
        "`with self.own_randomness(task)`, so that draws follow from the seed and the task alone; it guards no other"
    )


METHOD_CHECKS: list[Callable[[str, Path], None]] = [
    check_same_seed_same_bits,
    check_interrupted_equals_uninterrupted,
    check_state_is_complete,
    check_answering_changes_nothing,
    check_old_heads_stay,
    check_promise_of_not_forgetting,
    check_memory_does_not_grow_with_steps,
    check_task_ends_draw_apart,
    check_learns,
]


def _small(name: str, seed: int = 1, tasks: int | None = 3) -> RunConfig:
    return make_config(name, "D-5", preset="short", seed=seed, tasks=tasks, changes=SMALL)


def _global_generators() -> dict[str, bytes]:
    states = {"torch": torch.get_rng_state().numpy(), "NumPy": np.random.get_state(), "Python": random.getstate()}
    return {kind: pickle.dumps(state) for kind, state in states.items()}


def _digest(done: StoredRun) -> str:
    return str(done.events("finished")[0]["weights"])


def _interrupt_after(saved: int) -> Listener:
    """Interrupts after this many saved epochs or tasks, while the next one is recorded, before it is saved."""
    seen = 0

    def strike(event: dict[str, Any]) -> None:
        nonlocal seen
        seen += event["kind"] in ("epoch", "task")
        if seen > saved:
            raise Interruption

    return strike


def _after_each_task(config: RunConfig) -> list[tuple[Method, Task]]:
    """The method after each task, rebuilt from its saved state."""
    sequence = load(config, None)
    method, journal = build(config, sequence), InMemoryJournal()
    stages = method.stages(sequence.tasks, config.training)
    learn_sequence(method, sequence.tasks, config.training, journal, tests=None)
    found = []
    for state, task in zip(journal.states, stages, strict=True):
        then = build(config, sequence)
        then.load_state_dict(state)
        found.append((then, task))
    return found


def _heads(method: Method) -> dict[tuple[str, int], dict[str, Tensor]]:
    """The state of every head: of all lists of modules whose name ends in `heads`, by name and task."""
    return {
        (name, index): head.state_dict()
        for name, module in method.named_modules()
        if name.endswith("heads") and isinstance(module, nn.ModuleList)
        for index, head in enumerate(module)
    }


def _logits(method: Method, sequence: TaskSequence, task: int) -> Tensor:
    with evaluating(method), torch.no_grad():
        return method(sequence.tests[task].x[:16], task)


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return value


def _held_bytes(value: Any, seen: set[int]) -> int:
    """The bytes of all tensors and NumPy arrays that are reachable from a value, each counted once."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    if isinstance(value, Tensor):
        memory = value.untyped_storage()
        counted = memory.data_ptr() in seen
        seen.add(memory.data_ptr())
        return 0 if counted else memory.nbytes()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(_held_bytes(part, seen) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return sum(_held_bytes(part, seen) for part in value)
    return sum(_held_bytes(part, seen) for part in vars(value).values()) if hasattr(value, "__dict__") else 0
