"""NCL: plain fine-tuning on one task after another, the lower reference.

The lower reference of every comparison. Source: Konishi et al., ICML 2023.
Remembers between tasks: nothing but the network. Old heads stay as they are, to the bit; they become stale because the
backbone moves under them.
Departures: the paper's own NCL was not published. This is SPG's loop without the mask, at SPG's rate of 0.25, and it
forgets more than the paper tells; at 0.05, the rate of HAT's authors, whose plain SGD it may have been, it keeps more.
Cost: the unit in which the other methods' costs are told.
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
        """Learning rate; None means the training's. The lower, the less is forgotten and the slower a task is learned.
        Default: the training's, which Konishi et al. use for every method."""

        def __post_init__(self) -> None:
            require_above_zero(self, "lr")
