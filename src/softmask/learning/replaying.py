"""Shared by ER, DER++, MIR and MER: a reservoir of samples that are replayed with each batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from softmask.learning.method import Facts, Method, Step, Uses
from softmask.learning.replay import ReservoirBuffer, Samples, mixed_loss
from softmask.learning.seeds import Draws
from softmask.learning.task import Task


class ReplayMethod(Method):
    """Stores `budget` samples in all and draws `replay_batch` of them for each step; each is classified by its own
    task's head. A task's samples enter at its end, uniformly over all samples seen: with many epochs, a buffer filled
    step by step would contain duplicates. Heads of old tasks are trained further, on the replayed samples alone. The
    best epoch of a task is chosen by its own validation data, since validation data are not stored. The settings
    contain `budget` and `replay_batch`; an empty buffer is plain fine-tuning, to the bit.
    """

    family = "replay"
    keeps_old_data = "images"
    moves_old_heads = True
    not_in_snapshot = ("memory",)

    def build(self) -> None:
        super().build()
        self.memory = self.make_memory()
        self.draws = Draws(self.scenario.seeds.batches, type(self).__name__)

    def make_memory(self) -> ReservoirBuffer:
        return ReservoirBuffer(self.scenario, self.settings.budget)

    def replays(self) -> bool:
        """Whether there is anything to replay."""
        return len(self.memory) > 0

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        if self.replays():
            for head in self.heads[: task.id]:
                head.requires_grad_(True)

    def loss(self, step: Step) -> Tensor:
        return self.replay_loss(step) if self.replays() else super().loss(step)

    def replay_loss(self, step: Step) -> Tensor:
        """The training loss where there is something to replay."""
        raise NotImplementedError

    def drawn(self, step: Step) -> Samples:
        """The samples that are replayed in a step, drawn anew with every call."""
        return self.memory.draw(self.settings.replay_batch, self.draws.generator(step.task.id))

    def loss_of(self, samples: Samples, task: int) -> Tensor:
        """Their mean cross-entropy; `task` is the current task."""
        features = self.features(samples.images, task)
        return mixed_loss(self.heads[: task + 1], features, samples.tasks, samples.labels)

    def end_task(self, task: Task) -> Facts | None:
        self.keep_some(task)
        return super().end_task(task)

    def keep_some(self, task: Task) -> Tensor:
        """Stores samples of the task; returns their rows in the buffer."""
        with self.own_randomness(task):
            return self.memory.add(task)

    @classmethod
    def uses(cls, settings: Any) -> Uses:
        return Uses(old_data=f"{settings.budget} images") if settings.budget else Uses()
