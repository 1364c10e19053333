"""A step that updates a few parameters at a time, so that only their old values need a copy. Most optimizers of torch
process their groups one after the other, and the update of a parameter depends on no other parameter. Therefore a step
over groups that are split into parts is the same step, to the bit, and each part can be masked before the next one is
copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from softmask.core.moving import Moving, Remembered
from softmask.core.shards import local

INDEPENDENT = (
    *("ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam"),
)
"""Optimizers of `torch.optim` that update each parameter independently: all but LBFGS."""


def moves_one_by_one(optimizer: Optimizer) -> bool:
    """Subclasses do not count: their own `step` may, for example, clip by the norm of all gradients."""
    kind = type(optimizer)
    return kind.__name__ in INDEPENDENT and kind is getattr(torch.optim, kind.__name__, None)


class InTurn:
    """Replaces an optimizer within one call of its `step`: identical, except that its groups come part by part."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.moving: list[Moving] = []
        self._now = Remembered(())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    @property
    def param_groups(self) -> Iterator[dict[str, Any]]:
        """A step iterates over them after its closure has computed the gradients; each part is masked before the next
        one."""
        moving = [each for each in self.moving if any(p.grad is not None for p in each.parameters)]
        masked = {id(p) for each in moving for p in each.parameters}
        yield from self._groups({id(p) for group in self.optimizer.param_groups for p in group["params"]} - masked)
        for part in parts(moving):
            self._now = Remembered(part)
            yield from self._groups({id(p) for each in part for p in each.parameters})
            self.mask_update()

    def _groups(self, of: set[int]) -> Iterator[dict[str, Any]]:
        for group in self.optimizer.param_groups:
            if some := [p for p in group["params"] if id(p) in of]:
                yield {**group, "params": some}

    def mask_update(self) -> None:
        """The part that was stepped last, if it has not been masked: a step that raised did not ask for another
        part."""
        self._now.mask_update()


def parts(moving: Sequence[Moving]) -> list[list[Moving]]:
    """Entries that share a parameter stay together, in order; a batch has at most the bytes of the largest."""
    together = _connected(moving)
    sizes = [sum({id(p): local(p).nbytes for each in some for p in each.parameters}.values()) for some in together]
    found: list[list[Moving]] = []
    filled, most = 0, max(sizes, default=0)
    for some, size in zip(together, sizes, strict=True):
        if not found or filled + size > most:
            found.append([])
            filled = 0
        found[-1] += some
        filled += size
    return found


def _connected(moving: Sequence[Moving]) -> list[list[Moving]]:
    places: dict[int, set[int]] = {}  # by parameter: where in `moving` those are that it is connected with
    for place, each in enumerate(moving):
        joined = {place}.union(*(places.get(id(p), ()) for p in each.parameters))
        for member in joined:
            places.update({id(p): joined for p in moving[member].parameters})
    first = {min(joined): sorted(joined) for joined in places.values()}
    return [[moving[place] for place in first[start]] for start in sorted(first)]
