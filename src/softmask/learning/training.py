"""How every method is trained: one loop, one schedule, the same numbers for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class Training:
    """The defaults are those of the paper's authors (preset `paper`).

    Choices of ours: a loss over an epoch is the mean over its samples, where the authors add up the means of batches,
    the last of which may be small; a loss that is infinite counts as one that is no number, and is taken back.
    """

    __pydantic_config__ = {"extra": "forbid"}

    lr: float = 0.25
    """Learning rate of plain SGD at the start of each task, unless the method's settings give their own."""
    lr_min: float = 1e-3
    """Where the learning rate stops falling. For a method with another rate it is scaled alike."""
    lr_factor: float = 3.0
    """What a plateau of the validation loss divides the learning rate by."""
    patience: int = 5
    """Epochs without improvement before the rate falls; and, at the lowest rate, before training stops."""
    epochs: int = 500
    """At most so many epochs a task."""
    batch: int = 64
    shuffle: bool = False
    """Whether batches are drawn anew each epoch. The authors draw the order once, with the split."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """`cosine` runs all epochs and ends at `lr_min`; `plateau` falls when the validation loss no longer does."""
    joint_batch: int = 640
    """Batch size where all tasks are learned at once (MTL), as in the paper."""
    joint_epochs: int | None = None
    """Epochs over the union of all tasks (MTL); None means `epochs`."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes the training step under autocast; importance and evaluation stay in float32."""

    given: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that were passed when this object was made: a model folder has defaults of its own."""

    def __new__(cls, *values: Any, **named: Any) -> Training:
        made = super().__new__(cls)
        object.__setattr__(made, "given", frozenset([*list(cls.__dataclass_fields__)[: len(values)], *named]))
        return made

    def __post_init__(self) -> None:
        for name in ("lr", "lr_min", "patience", "epochs", "batch", "joint_batch"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if not self.lr_min <= self.lr:
            raise ValueError(f"lr_min must not lie above lr, but {self.lr_min} is more than {self.lr}: set both")
        if self.joint_epochs is not None and not self.joint_epochs > 0:
            raise ValueError(f"joint_epochs must be above 0, or null for `epochs`, not {self.joint_epochs}")
        if not self.lr_factor > 1:
            raise ValueError(f"lr_factor must be above 1, not {self.lr_factor}")


PRESETS: dict[str, Training] = {
    "paper": Training(),
    # A CPU has no time for plateaus: ten epochs reach most of the accuracy if the rate falls smoothly, and reshuffling
    # makes up for the few passes. Joint training sees each task's data as often in 50 epochs of ten times the batch.
    "short": Training(epochs=10, schedule="cosine", shuffle=True, joint_epochs=50),
}


def scaled(training: Training, lr: float) -> Training:
    """The same schedule for another learning rate: its floor keeps its distance."""
    return replace(training, lr=lr, lr_min=training.lr_min * (lr / training.lr))
