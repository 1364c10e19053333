"""The part that LwF and SPG+ share: the answers of old heads on the new images are part of the loss."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from softmask.core import KeepAnswers
from softmask.learning.method import Facts, Method, Step
from softmask.learning.task import Task


class DistillingMethod(Method):
    """Adds the distance between the old heads' answers at the beginning of the task and those of now (`KeepAnswers`).

    The teacher is the model as the task begins: it follows from the state that is saved between tasks, so it is made
    anew in `begin_task`, after a kill too, and is never stored itself. Both sides answer in evaluation mode: with
    dropout in the student, it would be pulled towards its own noise. The distance counts in validation, too: there it
    is the only sign of forgetting, and an epoch that is good for the new task alone would be chosen without it. The
    settings hold `temperature`.

    The features of a backbone that knew something before the first task (`keeps_features`) are kept, too.
    """

    keeps_features = False

    def build(self) -> None:
        super().build()
        self.keep = self.keep_features = KeepAnswers(self.backbone)

    def strength_of_answers(self) -> float:
        """The factor of the distance; 0 is plain training, to the bit."""
        return float(self.settings.strength)

    def begin_task(self, task: Task) -> None:
        super().begin_task(task)
        self.keep = KeepAnswers(
            self.backbone, self.heads[: task.id], self.strength_of_answers(), self.settings.temperature
        )
        if self.keeps_features:
            self.keep_features = KeepAnswers(self.backbone, strength=self.strength_of_answers(), of="features")
            if self.keep.active():
                self.keep_features.remembered = self.keep.remembered  # one teacher is enough

    def end_task(self, task: Task) -> Facts | None:
        self.keep = self.keep_features = KeepAnswers(self.backbone)  # lets the teachers go
        return super().end_task(task)

    def loss(self, step: Step) -> Tensor:
        return self._criterion(step)[0]

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        loss, logits = self._criterion(step)
        return loss, (logits.argmax(1) == step.y).sum()

    def _criterion(self, step: Step) -> tuple[Tensor, Tensor]:
        """The loss of a batch and its logits."""
        features = self.features(step.x, step.task.id)
        logits = self.heads[step.task.id](features)
        loss = F.cross_entropy(logits, step.y)
        for keep in (self.keep, self.keep_features):
            if keep.active():
                loss = loss + keep(step.x, features)
        return loss, logits
