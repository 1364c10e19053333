"""Sharded parameters (DTensor, as FSDP2 makes them), of which each process computes on its own shard.

A DTensor is recognised by its attributes, not by its class: importing that takes longer than all of softmask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from softmask.kernels.standardise import standardise_


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    return any(is_sharded(tensor) for tensor in tensors)


def local(tensor: Tensor) -> Tensor:
    """The shard that this process holds, not copied; a plain tensor is its own shard."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def map_shards(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """An elementwise function of a tensor, sharded in the same way."""
    return shard_of(function(local(tensor)), tensor)


def shard_of(part: Tensor, whole: Tensor) -> Tensor:
    """A local tensor as a shard of one that is sharded as `whole` is."""
    if not is_sharded(whole):
        return part
    mesh, placements = whole.device_mesh, whole.placements  # type: ignore[attr-defined]
    shape, stride = whole.shape, whole.stride()
    return type(whole).from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)  # type: ignore[attr-defined]


def reduce_over_shards(value: Tensor, whole: Tensor, how: str = "sum") -> Tensor:
    """A value that each process found in its shard, reduced to that of the whole. All processes must call it."""
    if not is_sharded(whole):
        return value
    operation = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[how]
    mesh = whole.device_mesh  # type: ignore[attr-defined]
    for dimension, placement in enumerate(whole.placements):  # type: ignore[attr-defined]
        if placement.is_shard():  # replicas need no reduction
            dist.all_reduce(value, op=operation, group=mesh.get_group(dimension))
    return value


def standardise_shard(gradient: Tensor) -> Tensor:
    """Eq. 3 over the whole tensor, in float32, for the shard that this process holds."""

    def value_range(part: Tensor) -> tuple[Tensor, Tensor]:
        ends = torch.stack(part.aminmax()) if part.numel() else part.new_tensor([torch.inf, -torch.inf])
        low = reduce_over_shards(ends[0].clone(), gradient, "min")
        return low, reduce_over_shards(ends[1].clone(), gradient, "max")

    def std_mean(part: Tensor) -> tuple[Tensor, Tensor]:
        mean = reduce_over_shards(part.sum(dtype=torch.float64), gradient) / gradient.numel()
        mean = mean.to(torch.float32)
        squares = reduce_over_shards((part - mean).square_().sum(dtype=torch.float64), gradient)
        return (squares / (gradient.numel() - 1)).sqrt().to(torch.float32), mean

    return standardise_(local(gradient).detach().to(torch.float32, copy=True), std_mean, value_range)


def gradients_by_backward(
    loss: Tensor, parameters: Iterable[Tensor], retain_graph: bool = False
) -> list[Tensor | None]:
    """Gradients by `backward` and `.grad`: a sharded parameter is in no graph; the wrapper's hooks set its gradient.

    It is the mean over the processes; importance does not depend on the scale.
    """
    parameters = list(parameters)
    loss.backward(retain_graph=retain_graph)
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found
