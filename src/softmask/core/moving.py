"""The change of a step, and the part of it that is undone: directions of a layer's inputs, or a share of each entry.

Intermediate results are computed for a few entries at a time: all of them at once would not fit beside a large model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from softmask.core.compact import decode
from softmask.core.directions import Projection
from softmask.core.layer_inputs import Layer
from softmask.core.shards import local

CACHED, MANY = 2**18, 2**22
"""Entries at a time: on a CPU as many as its caches hold, on a GPU so many that launch overhead is negligible."""


class Moving(Protocol):
    @property
    def parameters(self) -> list[nn.Parameter]: ...

    def mask_update(self, before: Sequence[Tensor]) -> None:
        """Called after a step with the values before it, one per parameter."""


class Remembered:
    """The values of parameters before a step, and the masking of the step."""

    def __init__(self, moving: Sequence[Moving]) -> None:
        self._moving = moving
        parameters = {id(p): p for each in moving for p in each.parameters}
        self._before = {key: p.detach().clone() for key, p in parameters.items()}

    @torch.no_grad()
    def mask_update(self) -> None:
        """May be called repeatedly."""
        for each in self._moving:
            each.mask_update([self._before[id(p)] for p in each.parameters])
        self._moving, self._before = (), {}


@dataclass(eq=False)
class MovingLayer:
    """new_W = old_W + (stepped_W - old_W) P, where a bias is the last column of W."""

    layer: Layer
    weight: bool
    bias: bool
    projection: Projection

    @property
    def parameters(self) -> list[nn.Parameter]:
        both = ((self.layer.weight, self.weight), (self.layer.bias, self.bias))
        return [p for p, moves in both if moves and p is not None]

    def mask_update(self, before: Sequence[Tensor]) -> None:
        new = [self.layer.outputs_first(p.detach()) for p in self.parameters]
        old = [self.layer.outputs_first(tensor) for tensor in before]
        if self.projection.is_zero:  # to the bit, and though the step may not be finite
            for to, kept in zip(new, old, strict=True):
                to.copy_(kept)
            return
        for rows, kept_rows in zip(self._blocks(new), self._blocks(old), strict=True):
            self._project(rows, [_wide(kept) for kept in kept_rows])

    def _blocks(self, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
        """Some outputs at a time, since they are independent. Groups of a convolution are projected side by side, as a
        whole."""
        outputs = len(tensors[0])
        some = max(1, _at_once(tensors[0]) // self.layer.width) if self.layer.groups == 1 else outputs
        return zip(*(tensor.split(some) for tensor in tensors), strict=True)

    def _project(self, new: Sequence[Tensor], old: Sequence[Tensor]) -> None:
        changes = [_wide(to) - kept for to, kept in zip(new, old, strict=True)]
        for to, kept, change in zip(new, old, self._projected(changes), strict=True):
            to.copy_(kept + change.reshape(to.shape))

    def project_gradient(self) -> None:
        gradients = [self.layer.outputs_first(p.grad) for p in self.parameters if p.grad is not None]
        for rows in self._blocks(gradients):
            for to, change in zip(rows, self._projected([_wide(g) for g in rows]), strict=True):
                to.copy_(change.reshape(to.shape))

    def _projected(self, changes: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.autocast(changes[0].device.type, enabled=False):  # a step may be taken inside one
            matrix = self.projection(self.layer.matrix(changes))
        columns = [matrix.shape[-1] - 1, 1] if len(changes) == 2 else [matrix.shape[-1]]
        return matrix.split(columns, -1)


@dataclass(eq=False)
class MovingEntries:
    """new = old + (1 - taken) (stepped - old), entry by entry or row by row."""

    parameter: nn.Parameter
    taken: Tensor | float

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.parameter]

    def mask_update(self, before: Sequence[Tensor]) -> None:
        new, old = local(self.parameter.detach()), local(before[0])
        if isinstance(self.taken, float) or not self.taken.dim():
            for some, kept in pieces(new, old):
                _keep(some, kept, self.taken)
            return
        at_once = max(1, _at_once(new) // max(1, new[0].numel()))
        for rows, kept_rows, taken in zip(*(t.split(at_once) for t in (new, old, self.taken)), strict=True):
            _keep(rows, kept_rows, taken)

    def project_gradient(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            return
        factor = 1 - torch.as_tensor(self.taken)
        if not gradient.is_sparse:
            gradient.mul_(factor)
            return
        rows = gradient._indices()[0]
        values = gradient._values() * factor.expand(len(self.parameter), 1)[rows]
        self.parameter.grad = torch.sparse_coo_tensor(
            gradient._indices(), values, gradient.shape, check_invariants=False, is_coalesced=gradient.is_coalesced()
        )


@dataclass(eq=False)
class MovingSoftly:
    """new = old + (1 - importance) (stepped - old), with importance as it is stored: eq. 6 for any optimizer."""

    parameter: nn.Parameter
    importance: Tensor
    effective: Callable[[Tensor], Tensor]
    """From the importance to the mask."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.parameter]

    def mask_update(self, before: Sequence[Tensor]) -> None:
        for new, old, stored in pieces(local(self.parameter.detach()), local(before[0]), local(self.importance)):
            _keep(new, old, self.effective(decode(stored)).to(new.device))


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same entries of tensors of one shape, some at a time; all at once if their memory layouts differ."""
    if all(tensor.is_contiguous() for tensor in tensors):
        yield from zip(*(tensor.view(-1).split(_at_once(tensors[0])) for tensor in tensors), strict=True)
    else:
        yield tensors


def _at_once(like: Tensor) -> int:
    return CACHED if like.device.type == "cpu" else MANY


def _keep(new: Tensor, old: Tensor, share: Tensor | float) -> None:
    # lerp is exact at both ends: a share of 0 keeps the step, 1 the old value, to the bit.
    if new.dtype in (torch.float32, torch.float64):
        new.lerp_(old, share if isinstance(share, float) else share.to(new.dtype))
    else:  # in half precision a share would round to 1 and block what may still move
        new.copy_(new.float().lerp_(old.float(), share))


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
