"""What a step moves, and what may not change of it: a layer loses directions of its inputs, other entries a share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from softmask.core.directions import Projection
from softmask.core.layer_inputs import Layer


class Moving(Protocol):
    @property
    def parameters(self) -> list[nn.Parameter]: ...

    def project_update(self, before: Sequence[Tensor]) -> None:
        """After a step, given the values before it, one a parameter."""

    def project_gradient(self) -> None:
        """Before a step, in place."""


@dataclass
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

    def project_update(self, before: Sequence[Tensor]) -> None:
        new = [self.layer.outputs_first(p.detach()) for p in self.parameters]
        old = [self.layer.outputs_first(tensor) for tensor in before]
        if self.projection.is_zero:  # to the bit, and though the step may not be finite
            for to, kept in zip(new, old, strict=True):
                to.copy_(kept)
            return
        wide = [_wide(kept) for kept in old]
        changes = [_wide(to) - kept for to, kept in zip(new, wide, strict=True)]
        for to, kept, change in zip(new, wide, self._projected(changes), strict=True):
            to.copy_(kept + change.reshape(to.shape))

    def project_gradient(self) -> None:
        gradients = [self.layer.outputs_first(p.grad) for p in self.parameters if p.grad is not None]
        for to, change in zip(gradients, self._projected([_wide(g) for g in gradients]), strict=True):
            to.copy_(change.reshape(to.shape))

    def _projected(self, changes: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.autocast(changes[0].device.type, enabled=False):  # a step may be taken inside one
            matrix = self.projection(self.layer.matrix(changes))
        columns = [matrix.shape[-1] - 1, 1] if len(changes) == 2 else [matrix.shape[-1]]
        return matrix.split(columns, -1)


@dataclass
class MovingEntries:
    """new = old + (1 - taken) (stepped - old), entry by entry or row by row."""

    parameter: nn.Parameter
    taken: Tensor

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [self.parameter]

    def project_update(self, before: Sequence[Tensor]) -> None:
        new, (old,) = self.parameter.detach(), before
        # lerp is exact at both ends: taken 0 keeps the step, taken 1 the old value, to the bit.
        if new.dtype in (torch.float32, torch.float64):
            new.lerp_(old, self.taken.to(new.dtype))
        else:
            new.copy_(new.float().lerp_(old.float(), self.taken))

    def project_gradient(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            return
        if not gradient.is_sparse:
            gradient.mul_(1 - self.taken)
            return
        rows = gradient._indices()[0]
        values = gradient._values() * (1 - self.taken).expand(len(self.parameter), 1)[rows]
        self.parameter.grad = torch.sparse_coo_tensor(
            gradient._indices(), values, gradient.shape, check_invariants=False, is_coalesced=gradient.is_coalesced()
        )


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()
