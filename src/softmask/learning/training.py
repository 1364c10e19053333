"""How every method is trained: one loop, one schedule, the same hyperparameters for all."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from softmask.learning.settings import new_field


@dataclass(frozen=True)
class Training:
    """Training hyperparameters. The defaults are those of the paper's authors (preset `paper`).

    Choices of ours: the loss of an epoch is the mean over its samples, where the authors add up the means of batches,
    the last of which may be small; an infinite loss is treated as NaN: the epoch is undone.
    """

    __pydantic_config__ = {"extra": "forbid"}

    lr: float = 0.25
    """Learning rate of plain SGD at the start of each task, unless the method's settings give their own."""
    lr_min: float = 1e-3
    """Lowest learning rate. For a method with another learning rate it is scaled by the same factor."""
    lr_factor: float = 3.0
    """The learning rate is divided by it when the validation loss is on a plateau."""
    patience: int = 5
    """Epochs without improvement before the learning rate falls; at the lowest one, before training stops."""
    epochs: int = 500
    """Maximum number of epochs per task."""
    batch: int = 64
    shuffle: bool = False
    """Whether the samples are reshuffled each epoch. The authors draw the order once, with the split."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """`cosine` runs all epochs and ends at `lr_min`; `plateau` lowers the learning rate when the validation loss no
    longer falls, and stops early."""
    joint_batch: int = 640
    """Batch size where all tasks are learned at once (MTL), as in the paper."""
    joint_epochs: int | None = None
    """Epochs over the union of all tasks (MTL); None means `epochs`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes the training step under autocast; importance and evaluation stay in float32."""
    first_epochs: int | None = new_field(None)
    """Maximum number of epochs for a task whose network starts from random weights (the first task; every task of ONE);
    None means `epochs`."""
    warmup_epochs: int = new_field(0)
    """Epochs over which the learning rate rises linearly from 0, batch by batch; the schedule begins after them."""
    augment: Literal["none", "crop-flip"] = new_field("none")
    """`crop-flip`: each training image is shifted by up to an eighth of its size and flipped horizontally with
    probability 1/2, only in training. The paper uses none."""
    optimizer: Literal["sgd", "adamw"] = new_field("sgd")
    """`adamw` replaces a method's plain SGD; its updates are scaled in the same way. Methods with their own optimizer,
    or that work on gradients, refuse it."""
    weight_decay: float = new_field(0.0)
    """Weight decay of AdamW: each step multiplies all trainable parameters by `1 - lr * weight_decay`."""

    given: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that were passed when this object was made: a model folder has defaults of its own.
    `dataclasses.replace` passes all of them: then those count that are not at their defaults."""

    def __new__(cls, *values: Any, **named: Any) -> Training:
        made, usual = super().__new__(cls), {each.name: each.default for each in fields(cls)}
        passed = dict(zip(usual, values, strict=False)) | named
        if passed.keys() == usual.keys():
            passed = {name: value for name, value in passed.items() if value != usual[name]}
        object.__setattr__(made, "given", frozenset(passed))
        return made

    def __post_init__(self) -> None:
        for name in ("lr", "lr_min", "patience", "epochs", "batch", "joint_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.lr_min <= self.lr:
            raise ValueError(f"lr_min must not be above lr, but {self.lr_min} is more than {self.lr}: set both")
        if self.joint_epochs is not None and not self.joint_epochs > 0:
            raise ValueError(f"joint_epochs must be above 0, or null for `epochs`, not {self.joint_epochs}")
        if self.first_epochs is not None and not self.first_epochs > 0:
            raise ValueError(f"first_epochs must be above 0, or null for `epochs`, not {self.first_epochs}")
        if not 0 <= self.warmup_epochs < min(self.epochs, self.first_epochs or self.epochs):
            raise ValueError(f"warmup_epochs must be 0 or more and below the epochs of a task: {self.warmup_epochs}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more, not {self.weight_decay}")
        if self.weight_decay > 0 and self.optimizer != "adamw":
            raise ValueError(f"weight_decay belongs to optimizer = adamw, not to {self.optimizer}: leave it at 0")
        if not self.lr_factor > 1:
            raise ValueError(f"lr_factor must be above 1, not {self.lr_factor}")


PRESETS: dict[str, Training] = {
    "paper": Training(),
    # To compare methods at the paper's level. On the first tasks of C-10 validation accuracy is at most 0.5 point
    # below preset `paper` for SPG, NCL and ONE (table in docs/reproducing.md); from random weights it takes 40 epochs.
    "compare": Training(epochs=30, first_epochs=40, schedule="cosine", shuffle=True, joint_epochs=150),
    # Waiting for plateaus takes too long on a CPU: ten epochs reach most of the accuracy if the learning rate falls
    # smoothly, and reshuffling compensates for the few passes. Joint training sees each task's data as often in 50
    # epochs of ten times the batch.
    "short": Training(epochs=10, schedule="cosine", shuffle=True, joint_epochs=50),
    # The papers of GPM, SGP and TRGP on ten tasks of CIFAR-100: main_cifar100.py of github.com/sahagobinda/GPM. There
    # the learning rate is halved after 6 epochs without improvement, and training stops when it falls below 1e-5:
    # 0.01 / 2**9 is the last value above. The option `momentum` is never used. Data and network: sequence C-10-GPM.
    "gpm": Training(lr=0.01, lr_min=0.01 / 2**9, lr_factor=2.0, patience=6, epochs=200, batch=64, shuffle=True),
}


def scaled(training: Training, lr: float) -> Training:
    """The same schedule for another learning rate: `lr_min` is scaled by the same factor."""
    return replace(training, lr=lr, lr_min=training.lr_min * (lr / training.lr))
