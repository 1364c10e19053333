"""One tensor for each parameter of a module, as EWC, SI, UCL and TAG keep it, and arithmetic on such lists of tensors.

A backbone has millions of parameters: an update of several operations, each over all of them, would wait for memory
most of the time. `blocks` goes through large tensors in parts that stay in the processor's cache from one operation to
the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]

BLOCK = 2**16
"""Entries of a block: a handful of blocks of float32 fit into the cache of a core."""


class PerParameter(nn.Module):
    """One buffer of zeros for each parameter, in its shape; buffers are saved, and restored with the weights.

    With `stacked`, that many of them for each parameter, in one tensor.
    """

    def __init__(self, module: nn.Module, stacked: int | None = None) -> None:
        super().__init__()
        rows = () if stacked is None else (stacked,)
        self.names = [name for name, _ in module.named_parameters()]
        for name, parameter in module.named_parameters():
            # A buffer's name may have no dot.
            self.register_buffer(name.replace(".", "/"), parameter.detach().new_zeros(*rows, *parameter.shape))

    def tensors(self) -> Tensors:
        """In the order of the module's parameters."""
        return tuple(self.buffers())

    def by_name(self) -> dict[str, Tensor]:
        """By the parameters' own names."""
        return dict(zip(self.names, self.tensors(), strict=True))

    @torch.no_grad()
    def copy_(self, source: Iterable[Tensor]) -> None:
        torch._foreach_copy_(self.tensors(), tuple(source))

    @torch.no_grad()
    def zero_(self) -> None:
        torch._foreach_zero_(self.tensors())


def rows_of_block(tensor: Tensor) -> int:
    """The number of rows (entries of the first dimension) in a block of this tensor."""
    return max(1, BLOCK * len(tensor) // max(1, tensor.numel()))


def blocks(*columns: Iterable[Tensor]) -> Iterator[Tensors]:
    """Goes through lists of tensors of equal shapes side by side, a block of rows at a time."""
    for tensors in zip(*columns, strict=True):
        rows = rows_of_block(tensors[0])
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)


def gradients_of(parameters: Iterable[Tensor]) -> Tensors:
    """The parameters' `.grad`; a missing one is set to zeros."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found.append(parameter.grad)
    return tuple(found)


def inner_product(left: Iterable[Tensor], right: Iterable[Tensor]) -> Tensor:
    """Of two lists of tensors, each taken as one vector."""
    return total([dot(a, b) for a, b in zip(left, right, strict=True)])


def dot(left: Tensor, right: Tensor) -> Tensor:
    """Of two tensors of equal shape, each taken as one vector."""
    return torch.dot(left.reshape(-1), right.reshape(-1))


def total(terms: list[Tensor]) -> Tensor:
    """Summed in float64, so that many terms keep the sign of a small sum."""
    return torch.stack(terms).sum(dtype=torch.float64).to(terms[0].dtype)
