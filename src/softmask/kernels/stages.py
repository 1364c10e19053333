"""A plain chain cut at its weighted layers, and its backward pass, for gradients of many outputs after one forward.

Between two weighted layers, ReLU, dropout and pooling together only choose and scale: there is one factor for each
activation, the gate. It is found once in a forward pass; every gradient goes back through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.kernels.convolution import as_rows, geometry, gradient_below, reads, weight_gradient
from softmask.kernels.products import below_linear, prefers_onednn
from softmask.kernels.random_drop import LEVELS, dense, draws_like, dropped_levels, kept_above, where_above


@dataclass(frozen=True)
class Stage:
    """A weighted layer, and what follows it up to the next one."""

    layer: nn.Conv2d | nn.Linear
    after: list[nn.Module]

    @property
    def tile(self) -> tuple[int, int]:
        """Height and width of the part of the layer's output from which one pooled entry comes."""
        kernels = [_pair(pool.kernel_size) for pool in self.after if isinstance(pool, nn.MaxPool2d)]
        return prod(height for height, _ in kernels), prod(width for _, width in kernels)


@dataclass(frozen=True)
class Passed:
    """A stage with what its backward pass must know of the forward pass."""

    stage: Stage
    input: Tensor
    reads: Tensor | None
    gate: Tensor


def stages_of(chain: Sequence[nn.Module]) -> tuple[list[nn.Module], list[Stage]] | None:
    """What comes before the first weighted layer, and the stages.

    None unless images become vectors at one place, before all linear layers, and a linear layer is the last.
    """
    entrance: list[nn.Module] = []
    stages: list[Stage] = []
    flat = not any(isinstance(layer, (nn.Conv2d, nn.MaxPool2d, nn.Flatten)) for layer in chain)
    for layer in chain:
        for_images = isinstance(layer, (nn.Conv2d, nn.MaxPool2d))
        if not _is_simple(layer) or (for_images and flat) or (isinstance(layer, nn.Linear) and not flat):
            return None
        flat = flat or isinstance(layer, nn.Flatten)
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            stages.append(Stage(layer, []))
        else:
            (stages[-1].after if stages else entrance).append(layer)
    return (entrance, stages) if stages and isinstance(stages[-1].layer, nn.Linear) else None


def _is_simple(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    if isinstance(layer, nn.MaxPool2d):
        # Windows that tile the image: each activation reaches one output at most, so that one factor says all.
        tiles = _pair(layer.stride) == _pair(layer.kernel_size) and not layer.ceil_mode
        return tiles and _pair(layer.padding) == (0, 0) and _pair(layer.dilation) == (1, 1)
    return True


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def forward(entrance: Sequence[nn.Module], stages: Sequence[Stage], x: Tensor) -> list[Passed]:
    """One forward pass, in the layers' own train or eval mode."""
    x = _through(entrance, x)
    passed = []
    for stage in stages:
        given = x
        x, gate = _gated(stage.after, stage.layer(given))
        passed.append(Passed(stage, given, _reads(stage.layer, given), gate))
    return passed


def _through(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
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
    # ReLU and a positive factor may change places with all the rest; after a pool there is less to do.
    x = F.relu(x) if rectified else x
    return x if scale == 1 else x * scale


def _gated(layers: Sequence[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layers make of `x`, and the factor with which each entry of `x` takes part in it."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = _through(layers, x)
        (gate,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), gate


def behind_gate(passed: Passed, gradient: Tensor) -> Tensor:
    """From the gradient of what a stage gave (pooled and flattened, perhaps) to that of what its layer gave."""
    gate = passed.gate
    if gate.dim() == 2:
        return gradient * gate
    (count, channels, height, width), (tall, wide) = gate.shape, passed.stage.tile
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


def add_gradients(passed: Passed, gradient: Tensor, sums: dict[Tensor, Tensor]) -> None:
    """From the gradient of a layer's output to those of its parameters, added to their sums where they have one."""
    layer = passed.stage.layer
    if layer.weight in sums:
        _add_weight_gradient(passed, gradient, sums[layer.weight])
    if layer.bias in sums:
        sums[layer.bias].add_(gradient.sum([dimension for dimension in range(gradient.dim()) if dimension != 1]))


def _add_weight_gradient(passed: Passed, gradient: Tensor, total: Tensor) -> None:
    layer = passed.stage.layer
    if isinstance(layer, nn.Linear):
        total.addmm_(gradient.t(), passed.input)
    elif passed.reads is None:
        total.add_(weight_gradient(gradient, passed.input, layer.weight, *geometry(layer)))
    else:
        rows = total.permute(0, 2, 3, 1).view(len(total), -1)
        rows.addmm_(as_rows(gradient).t(), passed.reads)


def below_layer(layer: nn.Conv2d | nn.Linear, gradient: Tensor, given: Tensor) -> Tensor:
    """From the gradient of a layer's output to that of its input."""
    if isinstance(layer, nn.Linear):
        return below_linear(gradient, layer.weight)
    return gradient_below(gradient, given, layer.weight, *geometry(layer))


def sum_for(parameter: Tensor) -> Tensor:
    """Zeros to add gradients up in: for a convolution with channels innermost, as its gradient is found."""
    layout = torch.channels_last if parameter.dim() == 4 else torch.contiguous_format
    return torch.zeros_like(parameter, memory_format=layout)


def _reads(layer: nn.Conv2d | nn.Linear, given: Tensor) -> Tensor | None:
    """What each output position of a convolution reads, a row each, where its weight's gradient is one product of it.

    All heads use it.
    """
    if isinstance(layer, nn.Linear) or prefers_onednn():
        return None
    return reads(given, layer.kernel_size, *geometry(layer))
