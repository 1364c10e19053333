"""Shared by LwF and SPG+: distillation of the old heads' answers to the new images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from softmask.core import KeepAnswers
from softmask.learning.method import Facts, Method, Step
from softmask.learning.task import Task


class DistillingMethod(Method):
    """Adds a distillation loss on the old heads' answers at the beginning of the task and now (`KeepAnswers`).

    The teacher is the model as the task begins: it is re-created from the saved state in `begin_task`, also after a
    kill, and never stored itself. Teacher and student are in evaluation mode: with dropout, the student would be
    trained towards its own noise. The distillation loss is part of the validation loss; otherwise the best epoch would
    be chosen by the new task alone. The settings contain `temperature`. The features of a pretrained backbone
    (`keeps_features`) are distilled, too.
    """

    keeps_features = False

    def build(self) -> None:
        super().build()
        self.keep = self.keep_features = KeepAnswers(self.backbone)

    def strength_of_answers(self) -> float:
        """The weight of the distillation loss; 0 is plain training, to the bit."""
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
