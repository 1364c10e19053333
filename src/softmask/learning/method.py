"""A continual learner: hooks around one training loop. The defaults are plain fine-tuning.

for task in method.stages(tasks, training):
    method.begin_task(task)
    method.learn(task, fit)              # by default one Fit, which for each batch does:
        method.loss(step).backward()
        method.after_backward(step)      #   change gradients
        method.clip_gradients()
        optimizer.step()
        method.after_step(step)          #   clamp parameters, measure the update
    method.end_task(task)                # on the best weights: importance, masks, replay buffer
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.core import freeze_running_statistics
from softmask.errors import SoftmaskError
from softmask.kernels.masked_sgd import MaskedSGD
from softmask.learning.device import isolated_randomness
from softmask.learning.networks import Backbone
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.settings import NoSettings
from softmask.learning.task import Task
from softmask.learning.training import Training, scaled

if TYPE_CHECKING:
    from softmask.learning.fit import Fitter

Facts = dict[str, Any]


class BackboneMismatch(SoftmaskError):
    """The method cannot work with this backbone."""


@dataclass(frozen=True)
class Step:
    """One batch of a task. `progress` runs from 0 to 1 over an epoch and is 1 in evaluation."""

    task: Task
    x: Tensor
    y: Tensor
    progress: float = 1.0
    lr: float = 0.0
    """The learning rate of this training step."""


@dataclass(frozen=True)
class Cost:
    """The expected cost of a method, in units of plain fine-tuning (NCL)."""

    step: float = 1.0
    """Time of a training step, the mean over the tasks."""
    fits: int = 1
    """Number of trainings per task, if there are several candidates."""
    task_end_passes: float = 0.0
    """Passes over the training data at task ends, summed over the sequence; a pass costs a training epoch."""
    kept_copies: float = 0.0
    """Memory between tasks, in copies of the backbone."""
    note: str = ""
    """A remark, for example what grows with the number of tasks."""


RUNNING_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch normalisation, as torch names them."""

FAMILIES = {
    "reference": "baselines: no protection against forgetting, or no sequence of tasks",
    "regularisation": "a penalty keeps weights or outputs near their old values",
    "projection": "updates are projected or scaled using the inputs or gradients of old tasks",
    "parameter isolation": "each task has its own parameters, which later tasks do not change",
    "replay": "stored or generated samples of old tasks are used again",
    "soft-masking": "the update of each parameter is scaled by one minus its importance to old tasks",
    "other": "methods of other packages without a family",
}
"""Families of methods, in the order of `softmask list methods`."""


@dataclass(frozen=True)
class Uses:
    """What a method uses beside the current task and one network. Tables rank only comparable methods together."""

    old_data: str = ""
    """Stored data of earlier tasks, or a generator of them; empty: none."""
    growth: str = ""
    """State, beside the heads, that grows with every task; empty: none."""
    other_data: str = ""
    """Data from outside the tasks; empty: none."""


class Method(nn.Module):
    """A continual-learning method. Its whole state is in `state_dict()`."""

    Settings: ClassVar[type] = NoSettings
    title: ClassVar[str]
    """Its name in the paper's tables."""
    family: ClassVar[str] = "other"
    """One of `FAMILIES`."""
    keeps_old_data: ClassVar[str] = ""
    """Data of earlier tasks that it stores, or a generator of them, for example "500 images". Empty: none. If this
    depends on the settings, override `uses`."""
    grows_with_tasks: ClassVar[str] = ""
    """State, beside the heads, that grows with every task, for example "masks". Empty: none."""
    other_data: ClassVar[str] = ""
    """Data from outside the tasks, such as unlabelled images. Empty: none."""
    default_dropout: ClassVar[tuple[float, float] | None] = (0.0, 0.0)
    """Dropout rates of a run (`drop1`, `drop2`) unless they are set: those of the method's authors, or none. None means
    the rates that Konishi et al. published for each sequence, which were searched for SPG."""
    dropout_source: ClassVar[str] = "none, since no rates are published for it on this network"
    """The source of `default_dropout`."""
    needs_blocks: ClassVar[bool] = False
    """Whether it works layer by layer, so that the backbone must be a `Backbone` of blocks."""
    needs_layers: ClassVar[bool] = False
    """Whether it works on the weights of convolutions and linear layers; all other parameters of the backbone are
    learned with the first task, or not at all."""
    never_forgets: ClassVar[bool] = False
    """Guarantees that the logits of old tasks stay the same, to the bit."""
    moves_old_heads: ClassVar[bool] = False
    """Whether the heads of earlier tasks may change; by default they stay the same, to the bit."""
    needs_sgd: ClassVar[bool] = False
    """Whether it changes gradients in a way that is correct only for plain SGD, since Adam would rescale them."""
    clip: ClassVar[float | None] = None
    """Largest joint norm of all gradients."""
    not_in_snapshot: ClassVar[tuple[str, ...]] = ()
    """Parts of which only trainable parameters change while a task is learned: the snapshots of every epoch leave the
    rest of them out. Only saves memory and time."""

    def __init__(self, scenario: Scenario, settings: Any = None) -> None:
        super().__init__()
        self.scenario = scenario
        self.settings = self.Settings() if settings is None else settings
        self.build()

    # The model

    def build(self) -> None:
        self.backbone = self.make_backbone()
        self.heads = self.scenario.heads(self.backbone.widths[-1])

    def make_backbone(self, scale: float = 1.0) -> Backbone:
        """A new backbone, `scale` times as wide as the scenario's."""
        backbone = self.scenario.backbone(scale)
        if self.needs_blocks and not isinstance(backbone, Backbone):
            self.require_fitting(type(backbone).__name__)
        shared = isinstance(backbone, Backbone) and self.scenario.network.norm == "batch"
        if shared and (self.needs_blocks or self.needs_layers):
            raise BackboneMismatch(
                f"{self.title} gives tasks their own parts of each layer, which a normalisation over the whole batch "
                "would mix: it cannot use network.norm=batch"
            )
        if not hasattr(backbone, "widths"):
            raise BackboneMismatch(
                f"{type(backbone).__name__} has no `widths`: a backbone gives the output units of its layers there, "
                "the last one being the number of features"
            )
        return backbone

    @classmethod
    def require_fitting(cls, network: str) -> None:
        """Raises if the method cannot work with a network of this name, which is no chain of blocks."""
        if cls.needs_blocks:
            raise BackboneMismatch(
                f"{cls.title} works layer by layer and needs a chain of blocks (alexnet, mlp, or a "
                f"softmask.learning.Backbone of your own), not {network}"
            )

    def features(self, x: Tensor, task: int) -> Tensor:
        return self.backbone(x)

    def forward(self, x: Tensor, task: int) -> Tensor:
        return self.heads[task](self.features(x, task))

    def answer(self, x: Tensor, task: int) -> tuple[Tensor | None, Tensor]:
        """The features that the task's head sees, and its logits. None for a method that does not call its head."""
        seen: list[Tensor] = []
        hook = self.heads[task].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = self(x, task)
        finally:
            hook.remove()
        return (seen[-1] if seen else None), logits

    # Learning a task

    def stages(self, tasks: Sequence[Task], training: Training) -> Sequence[Task]:
        """The tasks in the order of learning, in batches as the training says."""
        return [
            task.batched(training.batch, shuffle=training.shuffle, seed=derive(self.scenario.seeds.batches, task.name))
            for task in tasks
        ]

    def begin_task(self, task: Task) -> None:
        """Freeze, unfreeze, re-initialise. Only the heads of this task learn."""
        for index, head in enumerate(self.heads):
            head.requires_grad_(index in task.ids)

    def settle_statistics(self, task: Task) -> None:
        """Freezes the running statistics of batch normalisation after the first task: they have no gradient, so no
        method could protect them. Called when a task begins, and once the first has been learned."""
        freeze_running_statistics(self)

    def starts_anew(self, task: Task) -> bool:
        """Whether the task's network starts from random weights: then it gets `Training.first_epochs`."""
        return 0 in task.ids

    def training_for(self, task: Task, training: Training) -> Training:
        """The training with the number of epochs of this task."""
        epochs = training.first_epochs if self.starts_anew(task) else None
        return replace(training, epochs=epochs or training.epochs)

    def learn(self, task: Task, fit: Fitter) -> None:
        fit(self).run().restore_best()

    def loss(self, step: Step) -> Tensor:
        """The training loss."""
        loss = F.cross_entropy(self(step.x, step.task.id), step.y)
        penalty = self.penalty(step)
        return loss if penalty is None else loss + penalty

    def penalty(self, step: Step) -> Tensor | None:
        """Added to the cross-entropy, in training and in validation."""
        return None

    def after_backward(self, step: Step) -> None:
        """Change gradients."""

    def clip_gradients(self) -> None:
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip)

    def after_step(self, step: Step) -> None:
        """Clamp parameters, measure the update."""

    def end_task(self, task: Task) -> Facts | None:
        """Importance, masks, replay buffer, on the restored best weights, in eval mode. May return facts to record.

        Random draws belong under `own_randomness`.
        """
        return None

    def validate(self, step: Step) -> tuple[Tensor, Tensor]:
        """The validation criterion of a batch and the number of right answers, in eval mode."""
        logits = self(step.x, step.task.id)
        loss, penalty = F.cross_entropy(logits, step.y), self.penalty(step)
        return (loss if penalty is None else loss + penalty), (logits.argmax(1) == step.y).sum()

    # Optimisation

    def lr(self, training: Training) -> float:
        """The learning rate at the start of a task: the settings' own, or the training's."""
        own = getattr(self.settings, "lr", None)
        return training.lr if own is None else own

    def adapted(self, training: Training) -> Training:
        """The training with the method's own learning rate."""
        return scaled(training, self.lr(training))

    def make_optimizer(self, lr: float) -> Optimizer:
        """Plain SGD on what is trainable."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        scale = self.update_scale()
        return MaskedSGD(trainable, lr, update_scale={p: scale[p] for p in trainable if p in scale})

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        """The factor of each parameter's update, a number or a tensor of its shape; 1 for those that are not named."""
        return {}

    # State

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of all parameters and buffers that may change while a task is learned.

        Frozen ones too, unless their part is named in `not_in_snapshot`: a teacher may follow the weights, and `learn`
        may freeze first one part and then another. Running statistics are always included, since they change without a
        gradient.
        """
        named = itertools.chain(self.named_parameters(), self.named_buffers())
        return {
            name: tensor.detach().clone()
            for name, tensor in named
            if tensor.requires_grad
            or name.partition(".")[0] not in self.not_in_snapshot
            or name.rpartition(".")[2] in RUNNING_STATISTICS
        }

    @torch.no_grad()
    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Restores everything in the snapshot, whether or not it is trainable now."""
        named = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        for name, value in snapshot.items():
            named[name].copy_(value)

    @contextmanager
    def own_randomness(self, task: Task) -> Iterator[None]:
        """Random draws that depend only on the run's seed, the task and the method, and affect no other draws.

        Passes at task ends run under it, so that a method with such a pass stays comparable, to the bit, with one
        without.
        """
        with isolated_randomness():
            torch.manual_seed(derive(self.scenario.seeds.batches, task.name, self.name_of_draws()))
            yield

    def name_of_draws(self) -> str:
        """The name that seeds `own_randomness`. A subclass may use the same draws as its base class."""
        return type(self).__name__

    @classmethod
    def uses(cls, settings: Any) -> Uses:
        """What it uses with these settings, beside the current task and one network."""
        return Uses(cls.keeps_old_data, cls.grows_with_tasks, cls.other_data)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        """For `--dry-run`."""
        return Cost()

    @classmethod
    def learnable(cls, scenario: Scenario) -> int:
        """Learned parameters over the whole sequence, as the paper's table of network sizes counts them."""
        with torch.device("meta"):  # shapes without memory
            return sum(parameter.numel() for parameter in cls(scenario).parameters() if parameter.requires_grad)


def sgd_with_two_rates(method: Method, apart: Iterable[nn.Parameter], lr: float, factor: float) -> MaskedSGD:
    """Plain SGD: the parameters `apart` at `factor` times the learning rate, the other trainable ones at `lr`.

    Schedules and reports use the rate of the first group.
    """
    known = {id(parameter) for parameter in apart}
    trainable = [parameter for parameter in method.parameters() if parameter.requires_grad]
    others = [parameter for parameter in trainable if id(parameter) not in known]
    own = [parameter for parameter in trainable if id(parameter) in known]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": own, "lr": lr * factor}]
    return MaskedSGD(groups, lr)
