"""BinPlay: a generator replays old samples from binary codes that are computed from each sample's index.

Every sample of a task gets a random binary code, computed from its index whenever it is needed; a small network learns
to generate each sample from its code. While a new task is learned, old samples are generated from their codes and
replayed. Source: Deja, Wawrzyński, Marczak, Masarczyk and Trzciński, arXiv 2011.14960, 2020.
Remembers between tasks: the generator and the number of samples of each class; no codes and no images.
Equations: code(task, i) = 64 signs from a generator of random numbers that is seeded by the run, the task and i. Loss =
cross-entropy of the new batch + strength * cross-entropy of as many generated samples, each on its own task's head. At
the end of a task the generator G learns |G(code) - image|^2 for the codes of the new samples with their images, and for
those of old samples with its own previous output (self-distillation).
Departures: the authors train an autoencoder whose encoder is trained to output the codes; here there is only the
decoder, since the codes are given. It has two linear layers, so that it can be trained on a CPU. Only `samples` samples
of a task, the same number for each class, have a code. Codes are random signs, where the authors compute them from the
index by a formula. Labels also follow from the index, since samples are ordered by class. Old heads are trained
further.
Cost: from the second task on a step costs twice as much; the generator is trained at the end of each task.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    Batches,
    Cost,
    Draws,
    Facts,
    Method,
    Scenario,
    Step,
    Task,
    Uses,
    derive,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.replay import mixed_loss

GENERATOR_RATE, GENERATOR_BATCH = 1e-3, 64
"""Of Adam, which trains the generator."""


@register("binplay")
class BinPlay(Method):
    title = "BinPlay"
    family = "replay"
    moves_old_heads = True
    not_in_snapshot = ("generator",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        samples: int = 200
        """Samples of each task that the generator learns to replay, the same number per class; 0 is plain fine-tuning.
        Default: ours; the authors replay all."""
        strength: float = search(1.0, low=0.1, high=10.0, log=True)
        """Factor of the loss on replayed samples. Default: ours, the same weight as for the new ones."""
        bits: int = 64
        """Length of a code in bits. Default: ours."""
        hidden: int = 256
        """Hidden units of the generator. Default: ours."""
        generator_epochs: int = 50
        """Passes over all codes at the end of a task. Default: ours."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "samples", "strength")
            require_above_zero(self, "bits", "hidden", "generator_epochs", "lr")

    counts: Tensor
    """By task: samples of each class that have a code."""

    def build(self) -> None:
        super().build()
        settings, classes = self.settings, self.scenario.classes
        with torch.random.fork_rng(devices=[]):  # the classifier's first weights are those of other methods
            self.generator = nn.Sequential(
                nn.Linear(settings.bits, settings.hidden),
                nn.ReLU(),
                nn.Linear(settings.hidden, prod(self.scenario.input_shape)),
            ).requires_grad_(False)
        self.register_buffer("counts", torch.zeros(len(classes), max(classes), dtype=torch.int64))
        self.draws = Draws(self.scenario.seeds.batches, type(self).__name__)

    # Codes and their samples

    def codes(self, task: int) -> Tensor:
        """[samples, bits]: the codes of the task's samples that have one."""
        count, device = int(self.counts[task].sum()), self.counts.device
        seeds = [derive(self.scenario.seeds.init, "code", task, index) for index in range(count)]
        signs = [torch.rand(self.settings.bits, generator=torch.Generator().manual_seed(seed)) < 0.5 for seed in seeds]
        return torch.stack(signs).to(device, torch.float32) * 2 - 1 if count else torch.zeros(0, self.settings.bits)

    def labels(self, task: int) -> Tensor:
        """Samples are ordered by class."""
        counts = self.counts[task]
        return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)

    def images(self, codes: Tensor) -> Tensor:
        return self.generator(codes).view(-1, *self.scenario.input_shape)

    # Learning a task

    def begin_task(self, task: Task) -> None:
        for index, head in enumerate(self.heads):
            head.requires_grad_(index in task.ids or (index < task.id and self.replays()))
        self.old = self.old_samples(task.id) if task.id > 0 and self.replays() else None

    def old_samples(self, tasks: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes, labels and tasks of all samples of the first N tasks."""
        each = [
            (self.codes(task), self.labels(task), torch.full_like(self.labels(task), task)) for task in range(tasks)
        ]
        codes, labels, of_tasks = (torch.cat(part) for part in zip(*each, strict=True))
        return codes, labels, of_tasks

    def replays(self) -> bool:
        return self.settings.samples > 0 and self.settings.strength > 0

    def loss(self, step: Step) -> Tensor:
        loss = super().loss(step)
        if self.old is None:
            return loss
        codes, labels, tasks = self.old
        chosen = torch.randint(len(codes), (len(step.y),), generator=self.draws.generator(step.task.id))
        chosen = chosen.to(codes.device)
        with torch.no_grad():
            images = self.images(codes[chosen])
        replayed = mixed_loss(self.heads, self.backbone(images), tasks[chosen], labels[chosen])
        return loss + self.settings.strength * replayed

    # After a task

    def end_task(self, task: Task) -> Facts | None:
        if not self.replays():
            return None
        with self.own_randomness(task), torch.enable_grad():
            wanted, codes = self.new_samples(task), self.codes(task.id)
            if self.old is not None:
                with torch.no_grad():
                    wanted = torch.cat([wanted, self.images(self.old[0])])
                codes = torch.cat([codes, self.old[0]])
            error = self.train_generator(codes, wanted)
        return {"generator_error": error}

    def new_samples(self, task: Task) -> Tensor:
        """Images of the task in the order of their classes, as many of each as there are, up to an equal share."""
        train = task.train
        order = torch.randperm(train.count)
        share = max(1, self.settings.samples // task.classes)
        chosen = [order[train.labels[order] == label][:share] for label in range(task.classes)]
        for label, rows in enumerate(chosen):
            self.counts[task.id, label] = len(rows)
        rows = torch.cat(chosen)
        return Batches(train.images[rows], train.labels[rows], normalise=train.normalise, device=train.device).x

    def train_generator(self, codes: Tensor, wanted: Tensor) -> float:
        """The mean squared error of the last pass."""
        self.generator.requires_grad_(True)
        optimizer = torch.optim.Adam(self.generator.parameters(), GENERATOR_RATE)
        total = 0.0
        for _ in range(self.settings.generator_epochs):
            total = 0.0
            for chosen in torch.randperm(len(codes)).split(GENERATOR_BATCH):
                chosen = chosen.to(codes.device)
                loss = F.mse_loss(self.images(codes[chosen]), wanted[chosen])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.item() * len(chosen)
        self.generator.requires_grad_(False).zero_grad(set_to_none=True)
        return total / len(codes)

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        return Uses(old_data="a generator") if settings.samples and settings.strength else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        tasks = scenario.num_tasks
        # The generator has a tenth of the classifier's multiplications and sees a share of the images, fifty times.
        return Cost(step=1 + (tasks - 1) / tasks, task_end_passes=1.0 * tasks, kept_copies=0.2)
