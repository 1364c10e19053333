"""GR: a generator draws images like those of old tasks, on which the old model's answers are distilled.

Deep generative replay: no image is stored. A variational autoencoder is trained on the images of each task together
with images that it generated itself before. While the next task is learned, the network's answers to generated images
are kept as they were when the task began. Source: Shin, Lee, Kim and Kim, NeurIPS 2017, section 3; the autoencoder
replaces a GAN, as in van de Ven and Tolias, 2018.
Remembers between tasks: the generator, whatever the number of tasks. While a task is learned, a frozen copy of the
backbone is the teacher.
Equations: loss = cross-entropy of the batch + strength * sum over old heads of T^2 KL(softmax(old / T) || softmax(new /
T)) on `replay_batch` generated images; old = the answers of the model as the task began. At the end of task t the
generator learns by r * L(images of the task) + (1 - r) * L(images of the generator as it was), r = 1 / t, where L =
half the squared error of an image + KL(code || standard normal).
Departures: the generator is not conditioned on class or task, so every old head answers every generated image, as van
de Ven and Tolias do where the task id is known. Answers are distilled as probabilities, not as the most likely label.
Replay is weighted against the new task as by the authors, r to 1 - r, up to a common factor, since the sum has t - 1
heads. Old heads do not change. The generator continues from its weights, for a multiple of the network's epochs. The
distillation term is part of the validation loss, on images that are generated once for each task.
Cost: from the second task on a step has, in addition, a second pass of the student and a forward pass each of the
teacher and the generator. The generator is trained at the end of each task; one of its epochs costs about two thirds of
one of the network.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning import (
    Cost,
    DistillingMethod,
    Draws,
    Facts,
    Fitter,
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
from softmask.learning.device import isolated_randomness


@register("gr")
class GR(DistillingMethod):
    title = "GR"
    family = "replay"
    keeps_old_data = "generator"
    not_in_snapshot = ("generator",)

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the distillation loss of each old head; 0 is plain fine-tuning, without a generator. Default: the
        authors', who weigh all tasks alike."""
        temperature: float = search(2.0, low=1.0, high=8.0, log=True)
        """Temperature of both softmax functions in the distillation. Default: that of LwF's authors."""
        replay_batch: int = 64
        """Images generated for each step. Default: as many as a batch of the training has, as the authors."""
        generator_epochs: int = search(3, choices=(1, 3, 10))
        """Epochs of the generator on a task, per epoch of the network. Default: ours, to bound the cost."""
        generator_lr: float = search(1e-3, low=1e-4, high=1e-2, log=True)
        """Learning rate of the generator (Adam). Default: torch's."""
        channels: int = 32
        """Channels of the generator's first convolution, times the width of the network; the second has twice as many.
        Default: ours, small enough for a CPU."""
        latent: int = 64
        """Dimensions of an image's latent code. Default: ours."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate of the network; None means the training's. Default: ours, as for LwF."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "temperature", "replay_batch", "generator_epochs", "generator_lr", "channels")
            require_above_zero(self, "latent", "lr")

    def build(self) -> None:
        super().build()
        seeds, settings = self.scenario.seeds, self.settings
        with isolated_randomness():
            torch.manual_seed(derive(seeds.init, type(self).__name__))
            self.generator = make_generator(self.scenario, settings)
        self.generator.requires_grad_(False)
        self.draws = Draws(seeds.batches, type(self).__name__)
        self.epochs = settings.generator_epochs  # for the task that was just learned

    def loss(self, step: Step) -> Tensor:
        loss = F.cross_entropy(self(step.x, step.task.id), step.y)
        if not self.keep.active():
            return loss
        return loss + self.distance(step, self.settings.replay_batch, self.draws.generator(step.task.id))

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        logits = self(step.x, step.task.id)
        loss, right = F.cross_entropy(logits, step.y), (logits.argmax(1) == step.y).sum()
        if self.keep.active():
            seed = derive(self.scenario.seeds.batches, "validation", step.task.name)
            loss = loss + self.distance(step, len(step.y), torch.Generator().manual_seed(seed))
        return loss, right

    def distance(self, step: Step, images: int, randomness: torch.Generator) -> Tensor:
        """Distillation loss of the old heads, between the answers at the beginning of the task and now, on `images`
        generated images."""
        return self.keep(self.generator.sample(images, randomness, step.x.device))

    def learn(self, task: Task, fit: Fitter) -> None:
        network = fit(self).run().restore_best()
        self.epochs = self.settings.generator_epochs * network.epoch

    def end_task(self, task: Task) -> Facts:
        super().end_task(task)
        if self.settings.strength == 0:
            return {}
        with self.own_randomness(task):
            return {"generator_loss": self.learn_images(task, self.epochs)}

    def learn_images(self, task: Task, epochs: int) -> float:
        """Trains the generator on a task and on its own earlier images; returns the mean loss of the last epoch's new
        images."""
        settings, share = self.settings, 1 / (task.id + 1)
        old = copy.deepcopy(self.generator) if task.id > 0 else None
        train = task.train.batched(
            task.train.size, shuffle=True, seed=derive(self.scenario.seeds.batches, task.name, "generator")
        )
        self.generator.requires_grad_(True)
        optimizer = torch.optim.Adam(self.generator.parameters(), settings.generator_lr)
        for _ in range(epochs):
            total = torch.zeros((), device=train.device)
            for x, _ in train:
                with torch.enable_grad():
                    new = self.generator.loss(x)
                    loss = new
                    if old is not None:
                        loss = share * new + (1 - share) * self.generator.loss(old.sample(len(x), device=x.device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += new.detach() * len(x)
        self.generator.requires_grad_(False)
        mean = total.item() / train.count
        if not torch.isfinite(total):
            raise FloatingPointError(f"the generator's loss is {mean}; a lower generator_lr may help")
        return mean

    @classmethod
    def uses(cls, settings: Settings) -> Uses:
        return Uses(cls.keeps_old_data) if settings.strength > 0 else Uses()

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        settings, tasks = cls.Settings(), scenario.num_tasks
        with torch.device("meta"):  # shapes without memory
            generator = make_generator(scenario, settings)
            share = _size(generator.parameters()) / _size(scenario.backbone().parameters())
        # Three epochs for each of about ten, at two thirds of the network's time.
        return Cost(
            step=1 + 1.5 * (tasks - 1) / tasks,
            task_end_passes=20.0 * tasks,
            kept_copies=1 + share,
            note="trains a generator at each task's end",
        )


def make_generator(scenario: Scenario, settings: GR.Settings) -> Generator:
    """As wide as the network, relative to its full width."""
    channels = max(1, int(settings.channels * scenario.network.width))
    return Generator(scenario.input_shape, channels, settings.latent)


class Generator(nn.Module):
    """A variational autoencoder of two convolutions and their reverse, for normalised images of any size."""

    def __init__(self, input_shape: tuple[int, int, int], channels: int, latent: int) -> None:
        super().__init__()
        images, self.height, self.width = input_shape
        self.latent = latent
        small = (2 * channels, ceil(ceil(self.height / 2) / 2), ceil(ceil(self.width / 2) / 2))
        hidden = small[0] * small[1] * small[2]
        self.encoder = nn.Sequential(
            nn.Conv2d(images, channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(hidden, 2 * latent),
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent, hidden),
            nn.ReLU(),
            nn.Unflatten(1, small),
            nn.ConvTranspose2d(2 * channels, channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(channels, images, 4, stride=2, padding=1),
        )

    def decode(self, code: Tensor) -> Tensor:
        return self.decoder(code)[:, :, : self.height, : self.width]

    def loss(self, x: Tensor) -> Tensor:
        """The negative evidence bound of an image, but for a constant: pixels have variance 1; the mean over images."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        error = (self.decode(code) - x).square().sum() / 2
        return (error + from_standard_normal(mean, log_variance)) / len(x)

    def sample(
        self, count: int, randomness: torch.Generator | None = None, device: torch.device | str = "cpu"
    ) -> Tensor:
        with torch.no_grad():
            return self.decode(torch.randn(count, self.latent, generator=randomness).to(device))


def from_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """The KL divergence of independent normal distributions from the standard one, summed."""
    return (mean.square() + log_variance.exp() - log_variance - 1).sum() / 2


def _size(parameters: Iterator[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
