"""The backbones: blocks of one weighted layer each; the AlexNet of the paper's experiments, and a plain MLP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from softmask.kernels.chain import needed_input
from softmask.kernels.convolution import Convolution
from softmask.kernels.dropout import dropped_levels, relu_dropout, relu_dropout_pool
from softmask.kernels.linear import Linear


class Block(nn.Module):
    """One weighted layer, then ReLU, dropout and, after a convolution, a 2x2 max-pool."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, drop: float) -> None:
        super().__init__()
        dropped_levels(drop)  # refuses what is not a rate
        self.layer, self.drop = layer, drop

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.layer(x if isinstance(self.layer, nn.Conv2d) else x.flatten(1)))

    def activate(self, weighted: Tensor) -> Tensor:
        """All that follows the weighted layer."""
        follow = relu_dropout_pool if isinstance(self.layer, nn.Conv2d) else relu_dropout
        return follow(weighted, self.drop, self.training)

    @property
    def width(self) -> int:
        """Output units: channels of a convolution, features of a linear layer."""
        return self.layer.out_channels if isinstance(self.layer, nn.Conv2d) else self.layer.out_features

    def plain_layers(self) -> list[nn.Module]:
        """The standard layers that compute the same."""
        rectified: list[nn.Module] = [self.layer, nn.ReLU(), nn.Dropout(self.drop).train(self.training)]
        if isinstance(self.layer, nn.Conv2d):
            return [*rectified, nn.MaxPool2d(2)]
        return [nn.Flatten(), *rectified]

    def extra_repr(self) -> str:
        return f"drop={self.drop}"


class Backbone(nn.Sequential):
    """Blocks one after the other.

    Whoever goes through the blocks by hand (`for block in backbone`) starts from `backbone.prepare(x)`, as `forward`
    does: it changes nothing in the result, only the time.
    """

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        super().__init__(OrderedDict(blocks))
        self._needed: dict[tuple[int, int], tuple[int, int]] = {}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.prepare(x))

    def prepare(self, x: Tensor) -> Tensor:
        """Images without the rows and columns that no pool window reaches, in the quicker memory format."""
        if x.dim() != 4:
            return x
        size = (x.size(2), x.size(3))
        if size not in self._needed:  # depends on the blocks' geometry alone, which is fixed
            self._needed[size] = needed_input(self.plain_layers(), *size)
        rows, columns = self._needed[size]
        return x[:, :, :rows, :columns].contiguous(memory_format=torch.channels_last)

    @property
    def blocks(self) -> list[Block]:
        return [cast(Block, block) for block in self]

    @property
    def named_blocks(self) -> dict[str, Block]:
        return {name: cast(Block, block) for name, block in self.named_children()}

    @property
    def widths(self) -> tuple[int, ...]:
        """Output units of each block."""
        return tuple(block.width for block in self.blocks)

    def plain_layers(self) -> list[nn.Module]:
        """The standard layers that compute the same."""
        return [layer for block in self.blocks for layer in block.plain_layers()]


def alexnet(
    input_shape: tuple[int, int, int], *, width: float = 1.0, drop1: float = 0.2, drop2: float = 0.5
) -> Backbone:
    """Three convolutions and two linear layers; kernels follow from the size of the image.

    `width` scales the units of every layer, rounded down; `drop1` is for the first two convolutions, `drop2` for the
    rest.
    """
    channels, height, columns = input_shape
    size = min(height, columns)
    conv1, conv2, conv3, hidden = (max(1, int(units * width)) for units in (64, 128, 256, 2048))
    kernels = (size // 8, size // 10, 2)
    if min(kernels) < 1:
        raise ValueError(f"images of {height} x {columns} are too small: at least 10 x 10 is needed for a kernel")
    blocks = {
        "conv1": Block(Convolution(channels, conv1, kernels[0]), drop1),
        "conv2": Block(Convolution(conv1, conv2, kernels[1]), drop1),
        "conv3": Block(Convolution(conv2, conv3, kernels[2]), drop2),
    }
    for kernel in kernels:
        height, columns = (height - kernel + 1) // 2, (columns - kernel + 1) // 2
    if min(height, columns) < 1:
        raise ValueError(
            f"images of {input_shape[1]} x {input_shape[2]} are too small: nothing is left after the pools"
        )
    blocks["fc1"] = Block(Linear(conv3 * height * columns, hidden), drop2)
    blocks["fc2"] = Block(Linear(hidden, hidden), drop2)
    return Backbone(blocks)


def mlp(input_shape: tuple[int, ...], *, width: float = 1.0, drop: float = 0.0) -> Backbone:
    """Two linear layers of 512 units (times `width`) on inputs of any shape, flattened."""
    hidden = max(1, int(512 * width))
    return Backbone(
        {
            "fc1": Block(Linear(prod(input_shape), hidden), drop),
            "fc2": Block(Linear(hidden, hidden), drop),
        }
    )
