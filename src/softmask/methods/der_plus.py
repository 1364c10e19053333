"""DER++: replays stored samples and distils the logits that were stored with them.

Dark experience replay: the replay buffer holds samples of old tasks together with the logits that the network gave for
them. The loss keeps later logits near the stored ones, which contain more information than a label. DER++ also trains
on the labels of a second draw from the buffer. Source: Buzzega, Boschini, Porrello, Abati and Calderara, NeurIPS 2020,
equation 6.
Remembers between tasks: `budget` training images with labels, tasks and the logits of their own heads, whatever the
number of tasks.
Equations: loss = cross-entropy of the batch + alpha * mean squared difference between the logits of replayed samples
and those kept + beta * cross-entropy of a second draw; each sample is classified by its own task's head, and the
squares are averaged over samples and classes, as in the authors' code. Old heads are trained further.
Departures: the authors store samples, with the logits of that moment, while a task is learned; here a task's samples
enter the buffer at its end, with the logits of its best epoch, dropout off. Replayed images are not augmented. The best
epoch is chosen by the validation data of the new task alone.
Cost: from the second task on a step costs three times that of plain training: two draws as large as the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from softmask.learning import (
    Cost,
    ReplayMethod,
    ReservoirBuffer,
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
from softmask.learning.replay import own_head_logits, own_logits, places
from softmask.methods.er import replayed_step


@register("der-plus")
class DERPlus(ReplayMethod):
    title = "DER++"

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        alpha: float = search(0.2, low=0.05, high=2.0, log=True)
        """Factor of the squared difference of logits; with alpha and beta 0 this is plain fine-tuning. Default: the
        authors' for CIFAR-10 and a buffer of 500; in their tables it is from 0.1 to 1."""
        beta: float = search(0.5, low=0.1, high=2.0, log=True)
        """Factor of the cross-entropy of the second draw. Default: the authors' for CIFAR-10 and a buffer of 500."""
        budget: int = 500
        """Samples stored in all, by reservoir sampling over all tasks; 0 is plain fine-tuning. Default: the middle
        value of the authors, who compare 200, 500 and 5120."""
        replay_batch: int = 64
        """Samples of each of the two draws. Default: as many as a batch of the
        training has, as the authors."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method; the authors have 0.03."""

        def __post_init__(self) -> None:
            require_not_negative(self, "alpha", "beta", "budget")
            require_above_zero(self, "replay_batch", "lr")

    def make_memory(self) -> ReservoirBuffer:
        return ReservoirBuffer(self.scenario, self.settings.budget, answers=True)

    def replays(self) -> bool:
        return super().replays() and (self.settings.alpha > 0 or self.settings.beta > 0)

    def replay_loss(self, step: Step) -> Tensor:
        settings, task = self.settings, step.task.id
        first, second = (
            self.memory.pick(settings.replay_batch, self.draws.generator(task)) for _ in ("logits", "labels")
        )
        samples = self.memory.at(torch.cat([first, second])).after(step.x, step.y, task)
        heads = self.heads[: task + 1]
        logits = own_head_logits(heads, self.features(samples.images, task), samples.tasks)
        labels = places(heads, samples.tasks, samples.labels)
        new, distilled, replayed = (len(step.y), len(first), len(second))
        matched = slice(new, new + distilled)
        current = own_logits(heads, logits[matched], samples.tasks[matched])
        stored = self.memory.answers[first, : current.size(1)]
        classes = torch.tensor(self.scenario.classes, device=current.device)[samples.tasks[matched]]
        distance = (current - stored).pow(2).sum() / classes.sum()
        relearned = F.cross_entropy(logits[-replayed:], labels[-replayed:])
        loss = F.cross_entropy(logits[:new], labels[:new])
        return loss + settings.alpha * distance + settings.beta * relearned

    @torch.no_grad()
    def keep_some(self, task: Task) -> Tensor:
        taken = super().keep_some(task)
        for some in taken.to(self.memory.images.device).split(EVALUATION_BATCH):
            self.memory.answers[some, : task.classes] = self(self.memory.images[some], task.id)
        return taken

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        return Uses(old_data=f"{settings.budget} images, their logits") if settings.budget else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=replayed_step(scenario.num_tasks, passes=2), note=f"keeps {cls.Settings().budget:,} images")
