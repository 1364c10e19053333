"""NCL: plain fine-tuning on one task after another, the baseline without protection.

Naive continual learning. Source: Konishi et al., ICML 2023.
Remembers between tasks: only the network. Old heads do not change, but the backbone changes beneath them.
Departures: the paper's own NCL was not published. This is SPG's training loop without the mask, at SPG's learning rate
of 0.25, and it forgets more than the paper reports. At 0.05, the rate of HAT's authors, whose plain SGD the paper may
have used, it forgets less.
Cost: the reference; the costs of all other methods are relative to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmask.learning import Method, register, require_above_zero, search


@register("ncl")
class NCL(Method):
    title = "NCL"
    family = "reference"
    default_dropout = None
    dropout_source = "searched for SPG on each sequence and published by Konishi et al."

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. The lower it is, the less is forgotten and the more slowly a task
        is learned. Default: the training's, which Konishi et al. use for every method."""

        def __post_init__(self) -> None:
            require_above_zero(self, "lr")
