"""The default training of a model folder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from softmask.learning.settings import validated
from softmask.learning.training import Training
from softmask.models.data import Labelled, kind_of
from softmask.models.description import ModelConfig

Changes = Training | Mapping[str, Any]
"""The fields of `Training` that are to differ from the defaults of the folder."""
# Stops early when the validation loss no longer falls; shuffles every epoch, since a task may be small.
SGD = Training(lr=0.05, lr_min=1e-3, patience=4, epochs=100, batch=32, shuffle=True)
# The rate falls smoothly over a fixed number of epochs, so the duration of a task is known beforehand.
ADAMW = Training(
    lr=1e-3,
    lr_min=1e-5,
    epochs=20,
    batch=64,
    shuffle=True,
    schedule="cosine",
    warmup_epochs=1,
    optimizer="adamw",
    weight_decay=0.05,
)
USUAL = {"sgd": SGD, "adamw": ADAMW}
LEAST_STEPS, MOST_EPOCHS = 500, 200
"""On small tasks AdamW takes at least this many steps, but no more than this many epochs."""
# Later tasks start from trained weights. With SPG on three tasks of photographs, the second task at the learning rate
# of the first cost the first task 30 points; at a fifth of it 12, and the new task lost less than that. Where
# answers are kept, half the rate kept no more (one seed).
LATER_RATE = {"sgd": SGD.lr / 5, "adamw": ADAMW.lr}


def usual_training(config: ModelConfig, changes: Changes | None = None, train: Labelled | None = None) -> Training:
    """The defaults for the next task of a folder with these changes, checked; without `train`, before data are read.

    If the optimizer is changed, its defaults are used.
    """
    wanted = _named(changes)
    # An unknown optimizer is refused below.
    usual = dataclasses.asdict(USUAL.get(wanted.get("optimizer", config.optimizer), ADAMW))
    if config.tasks:
        usual["lr"] = LATER_RATE[usual["optimizer"]]
    if isinstance(lr := wanted.get("lr"), (int, float)):
        usual["lr_min"] = min(usual["lr_min"], lr)
    if isinstance(epochs := wanted.get("epochs"), int):
        usual["warmup_epochs"] = max(0, min(usual["warmup_epochs"], epochs - 1))
    training: Training = validated(Training, usual | wanted, "training")
    if train is None or training.optimizer == "sgd":
        return training
    fitted: dict[str, Any] = {"epochs": _epochs(training, len(train.labels)), "augment": _augment(config, train)}
    return dataclasses.replace(training, **{name: value for name, value in fitted.items() if name not in wanted})


def _epochs(training: Training, samples: int) -> int:
    """More epochs for a small task."""
    steps = math.ceil(samples / training.batch)
    return max(training.epochs, min(math.ceil(LEAST_STEPS / steps), MOST_EPOCHS))


def _augment(config: ModelConfig, train: Labelled) -> str:
    """For photographs; letters and digits, mostly grey, must not be mirrored."""
    in_colour = kind_of(train.inputs) == "bytes" and len(config.input_shape) == 3 and config.input_shape[0] == 3
    return "crop-flip" if in_colour else "none"


def _named(changes: Changes | None) -> dict[str, Any]:
    """The fields of a `Training` that were passed when it was created."""
    if isinstance(changes, Training):
        return {name: getattr(changes, name) for name in changes.given}
    return dict(changes or {})
