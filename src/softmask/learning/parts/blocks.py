"""Going through large tensors in parts that stay in the processor's cache from one operation to the next.

A backbone has millions of parameters: an update of several operations, each over all of them, would wait for memory
most of the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

Tensors = tuple[Tensor, ...]

BLOCK = 2**16
"""Entries of a block: a handful of blocks of float32 fit into the cache of a core."""


def rows_of_block(tensor: Tensor) -> int:
    """How many rows (entries of the first dimension) a block of this tensor has."""
    return max(1, BLOCK * len(tensor) // max(1, tensor.numel()))


def blocks(*columns: Iterable[Tensor]) -> Iterator[Tensors]:
    """Goes through lists of tensors of equal shapes side by side, a block of rows at a time."""
    for tensors in zip(*columns, strict=True):
        rows = rows_of_block(tensors[0])
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)
