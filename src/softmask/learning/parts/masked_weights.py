"""Weights seen through binary masks: straight-through scores, and masks kept as bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softmask.kernels.dropout import where_above
from softmask.learning.networks import Backbone

BYTE = 8
Module = TypeVar("Module", bound=nn.Module)


def without_biases(module: Module) -> Module:
    """Takes the biases out: a shared trainable bias has no mask and would make old tasks forget."""
    for layer in module.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.bias = None
    return module


def weights_of(backbone: Backbone) -> dict[str, Tensor]:
    """The weight of every block, by the block's name."""
    return {name: block.layer.weight for name, block in backbone.named_blocks.items()}


def uniform_scores(weight: Tensor) -> nn.Parameter:
    """New scores for a weight, drawn as a layer's initial weights are: uniform within 1 / sqrt(fan in)."""
    bound = weight[0].numel() ** -0.5
    return nn.Parameter(torch.empty_like(weight, requires_grad=False).uniform_(-bound, bound))


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` where the mask is 1, else 0. A select, not a product: what is masked may even be infinite."""
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
    """One binary mask for each tensor and task, one bit an entry."""

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
