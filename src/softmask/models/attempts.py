"""Learns a task repeatedly with increasing protection, until earlier tasks are retained or the time is up."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from softmask.core import RetentionError
from softmask.learning.training import Training
from softmask.models.description import ModelConfig
from softmask.models.learner import Learned, method_settings

STRONGER = ("lwf",)
"""Methods whose `strength` may be any number. Strong penalties would make SGD diverge."""
FACTOR = 2.0
SECONDS_A_MINUTE = 60


@dataclass(frozen=True)
class Attempt:
    """The same training with one number changed, or none."""

    config: ModelConfig
    training: Training
    changed: Mapping[str, float] = dataclasses.field(default_factory=dict)


def attempts(config: ModelConfig, training: Training) -> Iterator[Attempt]:
    """First the given settings; then each time twice the strength or, for methods without one, half the learning
    rate."""
    yield Attempt(config, training)
    strength = getattr(method_settings(config.method, config.settings), "strength", 0.0)
    lr = training.lr
    while True:
        if config.method in STRONGER and strength > 0:
            strength *= FACTOR
            settings = {**config.settings, "strength": strength}
            yield Attempt(replace(config, settings=settings), training, {"strength": strength})
        else:
            lr /= FACTOR
            slower = replace(training, lr=lr, lr_min=min(training.lr_min, lr))
            yield Attempt(config, slower, {"lr": lr})


def first_accepted(
    config: ModelConfig,
    training: Training,
    learn: Callable[[Attempt], Learned],
    minutes: float | None,
) -> tuple[Learned, Attempt]:
    """The first attempt that the gate in `learn` lets pass; without `minutes` there is one.

    An attempt begins only if it can end in time, judging by the longest so far. The error is that of the last attempt.
    """
    start, longest = time.monotonic(), 0.0
    for attempt in attempts(config, training):
        begun = time.monotonic()
        try:
            return learn(attempt), attempt
        except RetentionError as error:
            ended = time.monotonic()
            longest = max(longest, ended - begun)
            if minutes is None or ended - start + longest > SECONDS_A_MINUTE * minutes:
                raise
            changed = ", ".join(f"{name} {value:g}" for name, value in attempt.changed.items()) or "the settings given"
            warnings.warn(f"with {changed}: {error}; learned again with more protection", stacklevel=2)
    raise AssertionError("attempts never end")
