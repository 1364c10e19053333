"""Weights under binary masks: straight-through scores, the largest of them, and masks kept as bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from softmask.kernels.dropout import where_above
from softmask.learning.networks import Backbone

BYTE = 8
# A sample of every 61st entry (odd, so that it walks through all rows and columns of a matrix) brackets the threshold.
STRIDE = 61
# Below this size a full selection costs less than the bracket.
SMALL = 2**16
# Half the width of the bracket in standard deviations of the sample's rank: missing it costs time, never correctness.
MARGIN = 4.0
Module = TypeVar("Module", bound=nn.Module)


def without_biases(module: Module) -> Module:
    """Removes the biases: a shared trainable bias has no mask and would make old tasks forget."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.bias = None
    return module


def weight_names(backbone: nn.Module) -> dict[str, str]:
    """The full name of every convolution's and linear layer's weight, by the name of its block or layer."""
    if isinstance(backbone, Backbone):
        return {name: f"{name}.layer.weight" for name in backbone.named_blocks}
    # The name of a buffer may have no dot.
    return {
        name.replace(".", "/"): f"{name}.weight"
        for name, layer in backbone.named_modules()
        if isinstance(layer, (nn.Conv2d, nn.Linear))
    }


def weights_of(backbone: nn.Module) -> dict[str, Tensor]:
    """The weight of every convolution and linear layer, by the name of its block or layer."""
    return {name: backbone.get_parameter(full) for name, full in weight_names(backbone).items()}


def with_weights(backbone: nn.Module, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The backbone's output with these weights in place of its own."""
    names = weight_names(backbone)
    output: Tensor = functional_call(backbone, {names[name]: weight for name, weight in weights.items()}, (x,))
    return output


def other_parameters(backbone: nn.Module) -> list[nn.Parameter]:
    """All parameters but the weights of convolutions and linear layers: those of normalisation, positions, tokens."""
    weights = {id(weight) for weight in weights_of(backbone).values()}
    return [parameter for parameter in backbone.parameters() if id(parameter) not in weights]


def uniform_scores(weight: Tensor) -> nn.Parameter:
    """New scores for a weight, drawn as a layer's initial weights are: uniform within 1 / sqrt(fan in)."""
    bound = weight[0].numel() ** -0.5
    return nn.Parameter(torch.empty_like(weight, requires_grad=False).uniform_(-bound, bound))


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is 1, else 0. A select, not a product, since masked values may be infinite."""
    return where_above(values, mask, 0.5)


def seen_through(weight: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
    """The masked weight. The scores, from which the mask was made, get the gradient of a mask of ones (edge-popup)."""
    return _SeenThrough.apply(weight, scores, mask)


class _SeenThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scores, mask)
        return masked(weight, mask)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        weight, scores, mask = ctx.saved_tensors
        to_weight = masked(grad, mask) if ctx.needs_input_grad[0] else None
        return to_weight, scores.sign().mul_(weight).mul_(grad), None


class SavedMasks(nn.Module):
    """One binary mask for each tensor and task, one bit per entry."""

    known: Tensor

    def __init__(self, shapes: Mapping[str, torch.Size], tasks: int) -> None:
        super().__init__()
        self.shapes = dict(shapes)
        for name, shape in self.shapes.items():
            self.register_buffer(name, torch.zeros(tasks, -(-shape.numel() // BYTE), dtype=torch.uint8))
        self.register_buffer("known", torch.zeros(tasks, dtype=torch.bool))

    def save(self, task: int, masks: Mapping[str, Tensor]) -> None:
        for name, mask in masks.items():
            self.get_buffer(name)[task] = pack(mask)
        self.known[task] = True

    def load(self, task: int) -> dict[str, Tensor]:
        return {name: unpack(self.get_buffer(name)[task], shape) for name, shape in self.shapes.items()}

    def union(self) -> dict[str, Tensor]:
        """Entries that any task uses."""
        return {name: unpack(_union(self.get_buffer(name)), shape) for name, shape in self.shapes.items()}

    def holds(self, task: int) -> bool:
        return bool(self.known[task])


def _union(rows: Tensor) -> Tensor:
    union = torch.zeros_like(rows[0])
    for row in rows:
        union |= row
    return union


def pack(mask: Tensor) -> Tensor:
    """Eight entries a byte. Bit i of all bytes together holds the i-th eighth of the entries: no strided access."""
    flat = mask.flatten()
    size = -(-len(flat) // BYTE)
    packed = torch.zeros(size, dtype=torch.uint8, device=mask.device)
    for bit, part in _eighths(flat, size):
        packed[: len(part)] |= part.to(torch.uint8) << bit
    return packed


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """The mask again, as 1.0 and 0.0."""
    flat = torch.empty(shape.numel(), device=packed.device)
    for bit, part in _eighths(flat, len(packed)):
        part.copy_((packed[: len(part)] >> bit) & 1)
    return flat.view(shape)


def _eighths(flat: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    return ((bit, flat[bit * size : (bit + 1) * size]) for bit in range(BYTE))


def largest(values: Tensor, count: int) -> Tensor:
    """A mask: 1.0 for exactly `count` largest entries, 0.0 for the others; of ties at the threshold, the later stay.

    Takes few passes over memory.
    """
    flat = values.flatten()
    dropped = flat.numel() - count
    if not 0 <= dropped < flat.numel():
        raise ValueError(f"cannot keep {count} of {flat.numel()} entries")
    smallest, tied, excess = _edge(flat, dropped + 1)
    # Comparing into a float tensor avoids the slow conversion from booleans.
    mask = torch.ge(flat, smallest, out=torch.empty_like(flat))
    mask[tied[:excess]] = 0.0
    return mask.view_as(values)


def _edge(flat: Tensor, rank: int) -> tuple[Tensor, Tensor, int]:
    """The value of this rank (1 is the smallest), the places that hold it, and how many of them rank below."""
    low, high = _bracket(flat, rank)
    below = flat < low
    first = rank - int(torch.count_nonzero(below))  # the rank among those in the bracket
    places = ((flat <= high) ^ below).nonzero().squeeze(1)
    if not 1 <= first <= len(places):  # the sample misled: look at everything
        places, first = torch.arange(len(flat), device=flat.device), rank
    inside = flat[places]
    value = inside.kthvalue(first).values
    return value, places[inside == value], first - 1 - int(torch.count_nonzero(inside < value))


def _bracket(flat: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Two values that almost surely enclose the value of this rank."""
    if len(flat) <= SMALL:
        return flat.min(), flat.max()
    sample = flat[::STRIDE]
    share = rank / len(flat)
    spread = MARGIN * (len(sample) * share * (1 - share)) ** 0.5 + 1
    ranks = [share * len(sample) - spread, share * len(sample) + spread]
    low, high = (sample.kthvalue(min(max(1, round(each)), len(sample))).values for each in ranks)
    # At the ends of the scale the sample's own ends are no bound.
    return (flat.min() if ranks[0] < 1 else low), (flat.max() if ranks[1] > len(sample) else high)
