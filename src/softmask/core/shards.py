"""Parameters of which each process holds a part (DTensor, as FSDP2 makes them): everything is done part by part.

A DTensor is known by what it can do, not by its class: importing that takes longer than all of softmask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def any_sharded(tensors: Iterable[Tensor]) -> bool:
    return any(is_sharded(tensor) for tensor in tensors)


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds, not copied; a plain tensor is its own part."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def part_by_part(function: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """What an elementwise function makes of a tensor, sharded alike."""
    return like_shards(function(local(tensor)), tensor)


def like_shards(part: Tensor, whole: Tensor) -> Tensor:
    """A part of something that is sharded as `whole` is."""
    if not is_sharded(whole):
        return part
    mesh, placements = whole.device_mesh, whole.placements  # type: ignore[attr-defined]
    shape, stride = whole.shape, whole.stride()
    return type(whole).from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)  # type: ignore[attr-defined]


def over_shards(value: Tensor, whole: Tensor, how: str = "sum") -> Tensor:
    """A number that each process found in its part, for the whole. All processes must ask."""
    if not is_sharded(whole):
        return value
    operation = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}[how]
    mesh = whole.device_mesh  # type: ignore[attr-defined]
    for dimension, placement in enumerate(whole.placements):  # type: ignore[attr-defined]
        if placement.is_shard():  # where parts are copies of each other, one is enough
            dist.all_reduce(value, op=operation, group=mesh.get_group(dimension))
    return value


def standardised_shards(gradient: Tensor) -> Tensor:
    """Eq. 3 over the whole tensor, in float32, for the part that this process holds. See `standardise`."""
    part = local(gradient).detach().to(torch.float32)
    ends = part.new_tensor([torch.inf, -torch.inf])
    if part.numel():
        ends = torch.stack(part.aminmax())
    low = over_shards(ends[0].clone(), gradient, "min")
    high = over_shards(ends[1].clone(), gradient, "max")
    if low == high:
        return torch.zeros_like(part)
    largest = torch.maximum(high, -low)
    low, high = low / largest, high / largest
    part = (part / largest).sub_(low).div_(high - low)
    centre = over_shards(part.sum(dtype=torch.float64), gradient) / gradient.numel()
    part.sub_(centre.to(torch.float32))
    squares = over_shards(part.square().sum(dtype=torch.float64), gradient)
    return part.div_((squares / (gradient.numel() - 1)).sqrt().to(torch.float32))


def gradients_left_behind(loss: Tensor, parameters: Iterable[Tensor], again: bool = False) -> list[Tensor | None]:
    """What `backward` leaves: a sharded parameter takes part in no graph, its gradient comes from the wrapper's hooks.

    It is the mean over the processes; importance does not depend on the scale.
    """
    parameters = list(parameters)
    loss.backward(retain_graph=again)
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found
