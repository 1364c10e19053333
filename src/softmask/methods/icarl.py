"""iCaRL: replays exemplars of every class, distils old answers, and classifies by the nearest class mean.

Incremental classifier and representation learning: a replay buffer of fixed size is shared by all classes so far. The
exemplars of a class are chosen so that their mean feature is near that of the class (herding). They are added to the
training data of later tasks, on which the answers of old heads are distilled. An image is assigned to the class whose
exemplars have the nearest mean feature. Source: Rebuffi, Kolesnikov, Sperl and Lampert, CVPR 2017, algorithms 1 to 5.
Remembers between tasks: `budget` training images in all, each class with the same number, and the mean feature of each
class's exemplars. While a task is learned, a frozen copy of the backbone is the teacher.
Equations: loss = cross-entropy of the batch and of exemplars, each on its own task's head, + strength * sum over old
heads of T^2 KL(softmax(old / T) || softmax(new / T)) on all of them. Exemplar k of a class is the image that brings the
mean of the k chosen features nearest to the mean over the class; features have norm 1. After each task every class
keeps its first budget / classes exemplars. Prediction: the class of the task whose mean of exemplars, of norm 1, is
nearest to the feature.
Departures: the authors have one head for all classes, with sigmoid outputs; here each task has its own, with softmax,
and only the means of the task's classes are compared. Old heads do not change. Each batch gets as many exemplars as
make one pass over all of them per epoch, drawn at random, without augmentation. Class means are computed at task ends.
The best epoch is chosen by the new head's loss and the distillation term on the validation data.
Cost: from the second task on a step has, in addition, the exemplars, the teacher's forward pass and, with dropout, a
second pass of the student. A task ends with one forward pass over its images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.learning import (
    Cost,
    DistillingMethod,
    Draws,
    Facts,
    ReplayBuffer,
    Scenario,
    Step,
    Task,
    Uses,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.evaluation import EVALUATION_BATCH
from softmask.learning.replay import mixed_loss
from softmask.methods.lwf import distilling_step


@register("icarl")
class ICaRL(DistillingMethod):
    title = "iCaRL"
    family = "replay"
    not_in_snapshot = ("memory", "means", "known")

    means: Tensor
    known: Tensor

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        budget: int = 2000
        """Exemplars stored in all, shared by the classes so far; 0 is LwF. Default: the authors' for CIFAR-100."""
        strength: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the distillation loss of each old head; 0 with a budget of 0 is plain fine-tuning. Default: the
        authors', who weigh both losses alike."""
        temperature: float = search(2.0, low=1.0, high=8.0, log=True)
        """Temperature of both softmax functions in the distillation. Default: that of LwF's authors; the sigmoid
        outputs of iCaRL's authors have none."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: ours, as for LwF; the authors' 2.0 is for sigmoid
        outputs."""

        def __post_init__(self) -> None:
            require_not_negative(self, "budget", "strength")
            require_above_zero(self, "temperature", "lr")

    def build(self) -> None:
        super().build()
        scenario = self.scenario
        self.memory = Exemplars(scenario, self.settings.budget)
        self.draws = Draws(scenario.seeds.batches, type(self).__name__)
        self.register_buffer("means", torch.zeros(sum(scenario.classes), self.backbone.widths[-1]))
        self.register_buffer("known", torch.zeros(scenario.num_tasks, dtype=torch.bool))

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Once a task is learned, the logits are the cosines to the means of its classes; the largest belongs to the
        nearest."""
        if not self.known[task]:
            return super().forward(x, task)
        return F.normalize(self.features(x, task)) @ self.means[self.rows(task)].T

    def rows(self, task: int) -> slice:
        """The rows of the means of the task's classes."""
        first = sum(self.scenario.classes[:task])
        return slice(first, first + self.scenario.classes[task])

    def loss(self, step: Step) -> Tensor:
        if len(self.memory) == 0:
            return super().loss(step)
        task = step.task.id
        share = len(self.memory) / step.task.train.count
        exemplars = self.memory.draw(max(1, round(share * len(step.y))), self.draws.generator(task))
        samples = exemplars.after(step.x, step.y, task)
        features = self.features(samples.images, task)
        loss = mixed_loss(self.heads[: task + 1], features, samples.tasks, samples.labels)
        return loss + self.keep(samples.images, features) if self.keep.active() else loss

    @torch.no_grad()
    def end_task(self, task: Task) -> Facts | None:
        per_class = self.settings.budget // sum(self.scenario.classes[: task.id + 1])
        self.memory.shrink(per_class)
        features = torch.cat([self.unit_features(x, task.id) for x, _ in task.train.batched(EVALUATION_BATCH)])
        for label in range(task.classes):
            members = (task.train.labels == label).nonzero().flatten()
            chosen = herded(features[members.to(features.device)], per_class)
            self.memory.append(task, members[chosen.cpu()])
        self.known[: task.id + 1] = per_class > 0
        self.measure_means()
        return super().end_task(task)

    def measure_means(self) -> None:
        """Class means under the current network, since features change with every task."""
        memory = self.memory
        if len(memory) == 0:
            return
        images = memory.images[: len(memory)].split(EVALUATION_BATCH)
        features = torch.cat([self.unit_features(some, 0) for some in images])
        for task in memory.tasks[: len(memory)].unique().tolist():
            for label in range(self.scenario.classes[task]):
                own = memory.members(task, label)
                self.means[self.rows(task)][label] = F.normalize(features[own].mean(0), dim=0)

    def unit_features(self, x: Tensor, task: int) -> Tensor:
        return F.normalize(self.features(x, task))

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        return Uses(old_data=f"{settings.budget} images") if settings.budget else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        # With as many exemplars as half a task has images; a pass forward is a third of one with gradients.
        return Cost(
            step=1.5 * distilling_step(scenario.num_tasks),
            task_end_passes=scenario.num_tasks / 2,
            kept_copies=1,
            note=f"keeps {cls.Settings().budget:,} images",
        )


class Exemplars(ReplayBuffer):
    """Samples with their rank in the class: the first samples of a class represent it best."""

    ranks: Tensor

    def __init__(self, scenario: Scenario, budget: int) -> None:
        super().__init__(budget, scenario.input_shape)
        self.register_buffer("ranks", torch.zeros(budget, dtype=torch.int64))

    def append(self, task: Task, chosen: Tensor) -> None:
        """The rows of a class's samples, the most representative first."""
        places = slice(len(self), len(self) + len(chosen))
        self.put(places, task, chosen)
        self.ranks[places] = torch.arange(len(chosen), device=self.ranks.device)
        self.count += len(chosen)

    def shrink(self, per_class: int) -> None:
        """Each class keeps its first samples."""
        kept = (self.ranks[: len(self)] < per_class).nonzero().flatten()
        for tensor in (self.images, self.labels, self.tasks, self.ranks):
            tensor[: len(kept)] = tensor[kept]
        self.count.fill_(len(kept))

    def members(self, task: int, label: int) -> Tensor:
        """The rows of a class's samples."""
        filled = slice(0, len(self))
        return ((self.tasks[filled] == task) & (self.labels[filled] == label)).nonzero().flatten()


def herded(features: Tensor, count: int) -> Tensor:
    """Algorithm 4: one after the other, the sample that brings the mean of those chosen nearest to the mean of all."""
    target, total = features.mean(0), torch.zeros_like(features[0])
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen: list[Tensor] = []
    for k in range(1, min(count, len(features)) + 1):
        away = (target - (total + features) / k).norm(dim=1).masked_fill(~left, torch.inf)
        chosen.append(away.argmin())
        left[chosen[-1]] = False
        total = total + features[chosen[-1]]
    return torch.stack(chosen) if chosen else torch.zeros(0, dtype=torch.int64, device=features.device)
