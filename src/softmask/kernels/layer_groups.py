"""A plain chain split at its weighted layers, with a backward pass for gradients of many outputs after one forward.

Between two weighted layers, ReLU, dropout and pooling together only select and scale: each activation has one factor,
its gate. The forward pass finds the gates once; every gradient goes back through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.kernels.dropout import LEVELS, dense, draws_like, dropped_levels, kept_above, where_above
from softmask.kernels.layers import (
    as_rows,
    geometry,
    input_gradient,
    linear_backward,
    patches_of,
    prefers_onednn,
    weight_gradient,
)


@dataclass(frozen=True)
class LayerGroup:
    """A weighted layer, and the layers that follow it up to the next weighted one."""

    layer: nn.Conv2d | nn.Linear
    after: list[nn.Module]

    @property
    def tile(self) -> tuple[int, int]:
        """Height and width of the part of the layer's output from which one pooled entry comes."""
        kernels = [_pair(pool.kernel_size) for pool in self.after if isinstance(pool, nn.MaxPool2d)]
        return prod(height for height, _ in kernels), prod(width for _, width in kernels)


@dataclass(frozen=True)
class ForwardRecord:
    """A layer group with the parts of its forward pass that the backward pass needs."""

    group: LayerGroup
    input: Tensor
    patches: Tensor | None
    gate: Tensor


def layer_groups(chain: Sequence[nn.Module]) -> tuple[list[nn.Module], list[LayerGroup]] | None:
    """The layers before the first weighted one, and the groups.

    None unless images are flattened once, before all linear layers, and the last weighted layer is linear.
    """
    first: list[nn.Module] = []
    groups: list[LayerGroup] = []
    flat = not any(isinstance(layer, (nn.Conv2d, nn.MaxPool2d, nn.Flatten)) for layer in chain)
    for layer in chain:
        needs_images = isinstance(layer, (nn.Conv2d, nn.MaxPool2d))
        if not _is_simple(layer) or (needs_images and flat) or (isinstance(layer, nn.Linear) and not flat):
            return None
        flat = flat or isinstance(layer, nn.Flatten)
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            groups.append(LayerGroup(layer, []))
        else:
            (groups[-1].after if groups else first).append(layer)
    return (first, groups) if groups and isinstance(groups[-1].layer, nn.Linear) else None


def _is_simple(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.MaxPool2d):
        # Windows that tile the image: each activation reaches at most one output, so one factor is enough.
        tiles = _pair(layer.stride) == _pair(layer.kernel_size) and not layer.ceil_mode
        return tiles and _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    return True


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def forward(first: Sequence[nn.Module], groups: Sequence[LayerGroup], x: Tensor) -> list[ForwardRecord]:
    """One forward pass, in the layers' own train or eval mode."""
    x = _unweighted_forward(first, x)
    records = []
    for group in groups:
        given = x
        x, gate = _forward_with_gate(group.after, group.layer(given))
        records.append(ForwardRecord(group, given, _patches(group.layer, given), gate))
    return records


def _unweighted_forward(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    rectified, scale = False, 1.0
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            rectified = True
        elif not isinstance(layer, nn.Dropout):
            x = layer(x)
        elif layer.training and layer.p == 1:
            x = x * 0
        elif layer.training and (dropped := dropped_levels(layer.p)):
            x = dense(x)
            x = where_above(x, draws_like(x), kept_above(dropped))
            scale *= LEVELS / (LEVELS - dropped)
    # ReLU and a positive factor commute with the other layers; after a pool there are fewer entries.
    x = F.relu(x) if rectified else x
    return x if scale == 1 else x * scale


def _forward_with_gate(layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """The layers' output, and the factor with which each entry of `x` enters it."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = _unweighted_forward(layers, x)
        (gate,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gate


def gate_backward(record: ForwardRecord, gradient: Tensor) -> Tensor:
    """From the gradient of a group's output (pooled and flattened, perhaps) to that of its weighted layer's output."""
    gate = record.gate
    if gate.dim() == 2:
        return gradient * gate
    (count, channels, height, width), (tall, wide) = gate.shape, record.group.tile
    rows, columns = height // tall, width // wide
    pooled = gradient.reshape(count, channels, rows, columns).permute(0, 2, 3, 1).contiguous()
    whole = torch.empty_like(gate)

    def tiled(image: Tensor) -> Tensor:  # (image, row, row in tile, column, column in tile, channel)
        inside = image.permute(0, 2, 3, 1)[:, : rows * tall, : columns * wide]
        return inside.unflatten(2, (columns, wide)).unflatten(1, (rows, tall))

    torch.mul(pooled[:, :, None, :, None], tiled(gate), out=tiled(whole))
    whole[:, :, rows * tall :] = 0
    whole[..., columns * wide :] = 0
    return whole


def add_gradients(record: ForwardRecord, gradient: Tensor, sums: dict[Tensor, Tensor]) -> None:
    """From the gradient of a layer's output to those of its parameters, added to their sums where they have one."""
    layer = record.group.layer
    if layer.weight in sums:
        _add_weight_gradient(record, gradient, sums[layer.weight])
    if layer.bias in sums:
        sums[layer.bias].add_(gradient.sum([dimension for dimension in range(gradient.dim()) if dimension != 1]))


def _add_weight_gradient(record: ForwardRecord, gradient: Tensor, total: Tensor) -> None:
    layer = record.group.layer
    if isinstance(layer, nn.Linear):
        total.addmm_(gradient.t(), record.input)
    elif record.patches is None:
        total.add_(weight_gradient(gradient, record.input, layer.weight, *geometry(layer)))
    else:
        rows = total.permute(0, 2, 3, 1).view(len(total), -1)
        rows.addmm_(as_rows(gradient).t(), record.patches)


def layer_backward(layer: nn.Conv2d | nn.Linear, gradient: Tensor, given: Tensor) -> Tensor:
    """From the gradient of a layer's output to that of its input."""
    if isinstance(layer, nn.Linear):
        return linear_backward(gradient, layer.weight)
    return input_gradient(gradient, given, layer.weight, *geometry(layer))


def zeros_for_sum(parameter: Tensor) -> Tensor:
    """Zeros to sum gradients in; channels-last for a convolution, whose gradient is computed in that layout."""
    layout = torch.channels_last if parameter.dim() == 4 else torch.contiguous_format
    return torch.zeros_like(parameter, memory_format=layout)


def _patches(layer: nn.Conv2d | nn.Linear, given: Tensor) -> Tensor | None:
    """The patches that a convolution reads, where its weight gradient is computed as one product with them.

    All heads share them.
    """
    if isinstance(layer, nn.Linear) or prefers_onednn():
        return None
    return patches_of(given, layer.kernel_size, *geometry(layer))
