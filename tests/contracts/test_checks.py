"""The contract notices what it is there to notice: one wrong method for each check, at least."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softmask import testing
from softmask.learning.fit import Fitter
from softmask.learning.method import Method, Step
from softmask.learning.registry import METHODS, Entry
from softmask.learning.task import Task

ANYTHING = itertools.count(1)


class Moody(Method):
    """Its loss depends on what was run before."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * (1 + 1 / next(ANYTHING))


class Absent(Method):
    """Counts its steps where no checkpoint sees it."""

    def build(self) -> None:
        super().build()
        self.steps = 0

    def loss(self, step: Step) -> Tensor:
        self.steps += self.training
        return super().loss(step) * (1 + self.steps)


class Forgetful(Method):
    """Its answers depend on something that is not in its state."""

    def build(self) -> None:
        super().build()
        self.shift = 0.0

    def end_task(self, task: Task) -> None:
        self.shift += 1.0

    def features(self, x: Tensor, task: int) -> Tensor:
        return super().features(x, task) + self.shift


class Meddler(Method):
    """Halves the heads of other tasks."""

    which: Callable[[int, int], bool]

    @torch.no_grad()
    def end_task(self, task: Task) -> None:
        for index, head in enumerate(self.heads):
            if self.which(index, task.id):
                head.weight.mul_(0.5)


class MeddlerBefore(Meddler):
    which = staticmethod(lambda index, now: index < now)


class MeddlerAhead(Meddler):
    which = staticmethod(lambda index, now: index > now)


class MeddlerElsewhere(Method):
    """The heads that it answers with have another name."""

    def build(self) -> None:
        super().build()
        self.other_heads = nn.ModuleList(nn.Linear(self.backbone.widths[-1], n) for n in self.scenario.classes)

    @torch.no_grad()
    def end_task(self, task: Task) -> None:
        for head in self.other_heads:
            head.weight.mul_(0.5)


class Headless(Method):
    def build(self) -> None:
        super().build()
        self.answers = self.heads
        del self.heads

    def begin_task(self, task: Task) -> None:
        pass

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.answers[task](self.features(x, task))


class Promising(Method):
    never_forgets = True


class Hoarder(Method):
    """Keeps every loss that it has seen, outside of its state."""

    where: Callable[[], list[Tensor] | deque[Tensor]] = list

    def build(self) -> None:
        super().build()
        self.seen = type(self).where()

    def after_step(self, step: Step) -> None:
        self.seen.append(step.x.mean())


class HoarderInQueue(Hoarder):
    where = deque


class HoarderOfArrays(Hoarder):
    def after_step(self, step: Step) -> None:
        self.seen.append(np.zeros(9))


class Curious(Method):
    """Learns from whatever it is asked about."""

    def build(self) -> None:
        super().build()
        self.register_buffer("average", torch.zeros(()))

    def features(self, x: Tensor, task: int) -> Tensor:
        self.average.lerp_(x.mean(), 0.1)
        return super().features(x, task)


class Dreamer(Method):
    """Draws while it answers."""

    def features(self, x: Tensor, task: int) -> Tensor:
        return super().features(x, task) + torch.rand(())


class Loner(Method):
    """Learns without a Fit, and remembers outside of its state how many tasks there were."""

    def build(self) -> None:
        super().build()
        self.tasks_seen = 0

    @torch.no_grad()
    def learn(self, task: Task, fit: Fitter) -> None:
        self.tasks_seen += 1
        self.heads[task.id].weight.fill_(self.tasks_seen)


class Unguarded(Method):
    """Draws at task ends from a generator that is not its own."""

    draw: Callable[[], object]

    def end_task(self, task: Task) -> None:
        self.draw()


class UnguardedTorch(Unguarded):
    draw = staticmethod(lambda: torch.rand(()))


class UnguardedNumPy(Unguarded):
    draw = staticmethod(np.random.random)


class UnguardedPython(Unguarded):
    draw = staticmethod(random.random)


class Lazy(Method):
    """Learns nothing."""

    def loss(self, step: Step) -> Tensor:
        return super().loss(step) * 0.0


@pytest.mark.parametrize(
    ("wrong", "check", "said"),
    [
        (Moody, testing.check_same_seed_same_bits, "equal seeds, other weights"),
        (Absent, testing.check_interrupted_equals_uninterrupted, "neither in `state_dict"),
        (Forgetful, testing.check_state_is_complete, "answers otherwise for task 0"),
        (MeddlerBefore, testing.check_old_heads_stay, r"heads\[0\] changed while task 1"),
        (MeddlerAhead, testing.check_old_heads_stay, r"heads\[1\] changed while task 0"),
        (MeddlerElsewhere, testing.check_old_heads_stay, r"other_heads\[1\] changed"),
        (Headless, testing.check_old_heads_stay, "moves_old_heads = True"),
        (Promising, testing.check_promise_of_not_forgetting, "task 0 changed while 1"),
        (Hoarder, testing.check_memory_does_not_grow_with_steps, "kept for every step"),
        (HoarderInQueue, testing.check_memory_does_not_grow_with_steps, "kept for every step"),
        (HoarderOfArrays, testing.check_memory_does_not_grow_with_steps, "kept for every step"),
        (Curious, testing.check_answering_changes_nothing, "answering changed average"),
        (Dreamer, testing.check_answering_changes_nothing, "it differs"),
        (Loner, testing.check_interrupted_equals_uninterrupted, "neither in `state_dict"),
        (UnguardedTorch, testing.check_task_ends_draw_apart, "torch"),
        (UnguardedNumPy, testing.check_task_ends_draw_apart, "NumPy"),
        (UnguardedPython, testing.check_task_ends_draw_apart, "Python"),
        (Lazy, testing.check_learns, "50 is chance"),
    ],
)
def test_a_wrong_method_is_found(
    wrong: type[Method], check: Callable[[str, Path], None], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And told in words: in a package's tests, pytest explains the asserts of its own files alone."""
    METHODS.names()
    monkeypatch.setattr(wrong, "title", "wrong", raising=False)
    monkeypatch.setitem(METHODS._entries, "wrong", Entry("wrong", wrong))
    with pytest.raises(AssertionError, match=said):
        check("wrong", tmp_path)


def test_every_check_has_its_wrong_method() -> None:
    (mark,) = [mark for mark in test_a_wrong_method_is_found.pytestmark if mark.name == "parametrize"]
    assert {check for _, check, _ in mark.args[1]} == set(testing.METHOD_CHECKS)
