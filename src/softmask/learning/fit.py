"""The training loop: one task, a falling learning rate, early stopping, and a resumable state."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from softmask.core.statistics import average_over_processes
from softmask.errors import SoftmaskError
from softmask.learning.device import random_states, set_random_states
from softmask.learning.evaluation import validate
from softmask.learning.masked_adamw import make_optimizer
from softmask.learning.method import Method, Step
from softmask.learning.processes import OwnDraws, sharing
from softmask.learning.seeds import derive
from softmask.learning.task import Task, crop_and_flip
from softmask.learning.training import Training

State = dict[str, Any]


class DivergedError(SoftmaskError):
    """Training never reached a finite validation loss."""


class Fit:
    """Trains a method on one task. It never restores the best state by itself, since two Fits may share a network."""

    def __init__(
        self, learner: Method, task: Task, training: Training, after_epoch: Callable[[Fit], None] | None = None
    ) -> None:
        self.learner, self.task, self.after_epoch = learner, task, after_epoch
        self.training = learner.adapted(learner.training_for(task, training))
        self.optimizer = make_optimizer(learner, self.training)
        self.first_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.plateau = self._make_plateau() if self._stops_early else None
        self.epoch = self.stale = 0
        self.best_loss, self.best_epoch = math.inf, -1
        self.best = learner.snapshot()
        self.last: dict[str, float] = {}

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def done(self) -> bool:
        return self.epoch >= self.training.epochs or self.stale >= self.training.patience

    def run(self, epochs: int | None = None) -> Fit:
        """Train until done, or for this number of further epochs."""
        until = math.inf if epochs is None else self.epoch + epochs
        while not self.done and self.epoch < until:
            self._one_epoch()
            if self.after_epoch is not None:
                self.after_epoch(self)
        return self

    def follow(self, other: Fit) -> Fit:
        """Take over the epoch and the learning rate of another Fit, but none of its losses."""
        self.epoch = other.epoch
        for own, theirs in zip(self.optimizer.param_groups, other.optimizer.param_groups, strict=True):
            own["lr"] = theirs["lr"]
        return self

    def restore_best(self) -> Fit:
        if self.best_epoch < 0:
            raise DivergedError(
                f"training on {self.task.name} diverged: no epoch of {self.epoch} had a finite validation loss "
                f"(learning rate {self.training.lr:g}, {self.learner.settings})"
            )
        self.learner.restore(self.best)
        return self

    def _one_epoch(self) -> None:
        warming = self.epoch < self.training.warmup_epochs
        train_loss = self.train_epoch()
        lr = self.lr
        loss, accuracy = self._validated()
        self.last = {"lr": lr, "train_loss": train_loss, "val_loss": loss, "val_accuracy": accuracy}
        if not (math.isfinite(train_loss) and math.isfinite(loss) and self._weights_are_finite()):
            self.learner.restore(self.best)  # and go on: a lower learning rate may still save the task
            self.optimizer.state.clear()  # moments, as Adam's, that are not finite would spoil all later steps
            loss = math.inf
        if loss < self.best_loss:
            self.best_loss, self.best_epoch, self.best = loss, self.epoch, self.learner.snapshot()
            self.stale = 0
        else:
            # Only epochs at the lowest learning rate, which is that before the schedule's step, count as stale.
            self.stale = self.stale + 1 if self._stops_early and lr <= self.training.lr_min and not warming else 0
        self.epoch += 1
        if self.plateau is None:
            self._follow_cosine()
        elif not warming:
            self.plateau.step(loss)

    def _validated(self) -> tuple[float, float]:
        """The first process's value: all processes must decide alike, even if their processors round differently."""
        found = validate(self.learner, self.task)
        processes = sharing()
        return found if processes is None else processes.share(found)

    def _weights_are_finite(self) -> bool:
        """A weight behind a closed gate does not affect the losses, but an old task may use it."""
        return all(bool(p.isfinite().all()) for p in self.learner.parameters() if p.requires_grad)

    def train_epoch(self) -> float:
        """One pass over the training batches; returns the mean loss. It never synchronises with a GPU."""
        self.learner.train()
        processes, device = sharing(), self.task.train.device
        seed = (self.learner.scenario.seeds.batches, "process", self.task.name, self.epoch)
        draws = None if processes is None else OwnDraws(device, *seed, processes.rank)
        total = torch.zeros((), device=device)
        batches, augment = len(self.task.train), self._augmentation()
        for index, (x, y) in enumerate(self.task.train):
            self._warm_up((index + 1) / batches)
            progress = index / (batches - 1) if batches > 1 else 1.0
            step = Step(self.task, augment(x), y, progress, self.lr)
            self.optimizer.zero_grad(set_to_none=True)
            if processes is None or draws is None:
                total += self._backward(step) * len(y)
            else:
                own, share = processes.part(step)
                with draws.inside():
                    total += self._backward(own, share) * (share * len(y))
                processes.add_up(self.learner.parameters())
            self.learner.after_backward(step)
            self.learner.clip_gradients()
            self.optimizer.step()
            self.learner.after_step(step)
        self.learner.eval()
        if processes is not None:
            average_over_processes(self.learner)
            processes.total(total)
        return total.item() / self.task.train.count

    def _backward(self, step: Step, share: float = 1.0) -> Tensor:
        """Gradients of the loss, times the share of the batch that these samples are; returns the loss."""
        with torch.autocast(step.x.device.type, torch.bfloat16, enabled=self.training.precision == "bf16"):
            loss = self.learner.loss(step)
        (loss if share == 1.0 else loss * share).backward()
        return loss.detach()

    @property
    def _stops_early(self) -> bool:
        return self.training.schedule == "plateau"

    def _follow_cosine(self) -> None:
        """Implemented here, since torch's LambdaLR forms a reference cycle with the optimizer, which then outlives its
        task."""
        warmup = self.training.warmup_epochs
        floor, last = self.training.lr_min / self.training.lr, max(1, self.training.epochs - warmup - 1)
        factor = floor + (1 - floor) * (1 + math.cos(math.pi * min(max(0, self.epoch - warmup) / last, 1))) / 2
        self._scale_rates(factor)

    def _warm_up(self, share: float) -> None:
        """The learning rate after this share of the epoch; nothing after the last epoch of the warm-up."""
        if self.epoch < self.training.warmup_epochs:
            self._scale_rates((self.epoch + share) / self.training.warmup_epochs)

    def _scale_rates(self, factor: float) -> None:
        for group, first in zip(self.optimizer.param_groups, self.first_rates, strict=True):
            group["lr"] = first * factor

    def _augmentation(self) -> Callable[[Tensor], Tensor]:
        """Drawn from the run's seed, the task and the epoch, so that a resumed run sees the same images."""
        if self.training.augment == "none":
            return lambda images: images
        seed = derive(self.learner.scenario.seeds.batches, "augment", self.task.name, self.epoch)
        return functools.partial(crop_and_flip, generator=torch.Generator().manual_seed(seed))

    def _make_plateau(self) -> ReduceLROnPlateau:
        # A group with another learning rate keeps its ratio to the first all the way down.
        floors = [self.training.lr_min * (group["lr"] / self.training.lr) for group in self.optimizer.param_groups]
        return ReduceLROnPlateau(
            self.optimizer,
            factor=1 / self.training.lr_factor,
            patience=self.training.patience - 1,
            min_lr=floors,
            eps=0.0,  # else a small learning rate never reaches its floor, and training never stops early
        )

    def state_dict(self) -> State:
        return {
            "epoch": self.epoch,
            "stale": self.stale,
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "best": self.best,
            "optimizer": self.optimizer.state_dict(),
            "schedule": {} if self.plateau is None else self.plateau.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.stale = state["epoch"], state["stale"]
        self.best_loss, self.best_epoch = state["best_loss"], state["best_epoch"]
        self.best = dict(state["best"])
        self.optimizer.load_state_dict(dict(state["optimizer"]))
        if self.plateau is not None:
            self.plateau.load_state_dict(state["schedule"])


class Fitter:
    """Creates the Fits of one task and saves their states, so that a killed run resumes after its last epoch.

    A method that overrides `learn` may keep what it needs in `notes` (numbers, strings, lists, tensors) and should read
    it first: after a kill it holds the last saved values. Draw random numbers only after that.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        training: Training,
        save: Callable[[State], None] | None = None,
        saved: State | None = None,
        watch: Callable[[Fit], None] | None = None,
    ) -> None:
        self.method, self.task, self.training = method, task, training
        self._save, self._watch = save, watch
        self._fits: dict[str, Fit] = {}
        self._waiting: dict[str, State] = {}
        self._method_as_saved: State = {}
        self.notes: State = {}
        self.epochs = 0  # of all Fits together
        if saved is not None:
            self._resume(saved)

    def __call__(self, learner: Method, name: str = "fit") -> Fit:
        """A new Fit, or the saved one of this name if the run was interrupted."""
        fit = Fit(learner, self.task, self.training, after_epoch=self._after_epoch)
        if (state := self._waiting.pop(name, None)) is not None:
            fit.load_state_dict(state["fit"])
            # The method's own once more: an earlier Fit, done before the kill, may have put its best weights back.
            learner.restore(self._method_as_saved if state["learner"] is None else state["learner"])
            if not self._waiting:
                self._method_as_saved = {}
        self._fits[name] = fit
        return fit

    def drop(self, name: str) -> None:
        """Forget a Fit that is no longer needed."""
        self._fits.pop(name, None)

    def close(self) -> None:
        """Called when the task has been learned. Fits and Fitter reference each other and hold copies of all weights;
        this frees them."""
        self._fits.clear()
        self._method_as_saved = {}
        self._save = self._watch = None

    def save(self) -> None:
        if self._save is None:
            return
        fits = {
            name: {"fit": fit.state_dict(), "learner": None if fit.learner is self.method else fit.learner.snapshot()}
            for name, fit in self._fits.items()
        }
        order = self.task.train.generator
        generators = random_states(self.task.train.device) | {"order": order.get_state()}
        state = {"fits": fits, "notes": self.notes, "epochs": self.epochs, "generators": generators}
        self._save(state | {"method": self.method.snapshot()})

    def _after_epoch(self, fit: Fit) -> None:
        self.epochs += 1
        if self._watch is not None:
            self._watch(fit)
        self.save()

    def _resume(self, saved: State) -> None:
        self.notes, self._waiting, self.epochs = dict(saved["notes"]), dict(saved["fits"]), saved.get("epochs", 0)
        self._method_as_saved = saved["method"]
        self.method.restore(self._method_as_saved)
        set_random_states(saved["generators"], self.task.train.device)
        self.task.train.generator.set_state(saved["generators"]["order"])
