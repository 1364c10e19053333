"""Whether an earlier task knows more about a new one than a new network learns from scratch (CAT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from softmask.learning.device import random_apart
from softmask.learning.evaluation import EVALUATION_BATCH, validate
from softmask.learning.fit import Fit, Fitter
from softmask.learning.method import Method
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training


@dataclass(frozen=True)
class Rate:
    lr: float | None = None
    """Learning rate of the method that asks; None means the training's."""


class Reference(Method):
    """A new network for one task, whose logits go through a linear read-out as those of a probe do."""

    title = "reference"
    Settings = Rate

    def build(self) -> None:
        self.backbone = self.scenario.backbone()
        (classes,) = self.scenario.classes
        head = nn.Linear(self.backbone.widths[-1], classes)
        self.heads = nn.ModuleList([nn.Sequential(head, nn.Linear(classes, classes))])

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[0](self.backbone(x))


class Readout(Method):
    """A linear map from an earlier task's logits, which are its pictures, to the classes of a new task."""

    title = "readout"
    Settings = Rate

    def build(self) -> None:
        self.heads = self.scenario.heads(self.scenario.input_shape[0])

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[0](x)


def reference_accuracy(scenario: Scenario, task: Task, fit: Fitter, rate: Rate) -> float:
    """Validation accuracy of a network that learns the task alone; always from the same first weights."""
    with random_apart():
        torch.manual_seed(derive(scenario.seeds.init, "reference"))
        reference = Reference(replace(scenario, classes=(task.classes,)), rate).to(task.train.device)
    trial = fit(reference, "reference")
    if trial.epoch == 0:  # not resumed
        torch.manual_seed(derive(scenario.seeds.batches, "reference", task.name))
    accuracy = _best_accuracy(trial.run())
    fit.drop("reference")
    return accuracy


def readout_accuracy(
    scenario: Scenario, task: Task, training: Training, source: int, logits: Callable[[Tensor], Tensor], rate: Rate
) -> float:
    """Validation accuracy of the best linear read-out of an earlier task's logits.

    The earlier task's network is fixed and its dropout off: its logits are computed once. So quick is this that a kill
    repeats it; its draws follow from the tasks and it leaves those of others alone.
    """
    with random_apart():
        torch.manual_seed(derive(scenario.seeds.batches, "readout", source, task.name))
        train, val = (_seen_through(logits, batches) for batches in (task.train, task.val))
        as_pictures = replace(scenario, input_shape=(train.images.size(1), 1, 1), classes=(task.classes,))
        readout = Readout(as_pictures, rate).to(task.train.device)
        probed = replace(task, train=train, val=val)
        return _best_accuracy(Fit(readout, probed, training).run())


def _best_accuracy(trial: Fit) -> float:
    """On the validation set. One that never was finite knows what it knew before, and does not end the run."""
    trial.learner.restore(trial.best)
    return validate(trial.learner, trial.task)[1]


@torch.no_grad()
def _seen_through(logits: Callable[[Tensor], Tensor], batches: Batches) -> Batches:
    seen = torch.cat([logits(x) for x, _ in batches.batched(EVALUATION_BATCH)])
    return Batches(seen, batches.y, batches.size, shuffle=batches.shuffle, seed=batches.seed, device=batches.device)
