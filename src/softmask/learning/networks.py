"""The networks: the AlexNet of the paper's experiments and an MLP, in blocks of a layer each; a ResNet-18; a ViT."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import gcd, prod
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.kernels.chain import needed_input
from softmask.kernels.dropout import dropped_levels, relu_dropout, relu_dropout_pool
from softmask.kernels.layers import Convolution, Linear

RESNET_CHANNELS = (64, 128, 256, 512)
MOST_GROUPS = 32  # as the authors of group normalisation advise
HEADS, HEAD_WIDTH, LAYERS = 3, 64, 6
"""Of `vit-tiny`: heads and their width as in DeiT-Ti, half of its layers since images are small."""
FEWEST_PATCHES = 7
"""Along the shorter side of an image."""
Norm = Literal["none", "group", "batch"]


class Block(nn.Module):
    """One weighted layer, then ReLU, dropout and, after a convolution, a 2x2 max-pool.

    With `norm="batch"` the layer's outputs are normalised by the mean and deviation of the batch, in evaluation too.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, drop: float, norm: Norm = "none") -> None:
        super().__init__()
        dropped_levels(drop)  # refuses what is not a rate
        self.layer, self.drop = layer, drop
        self.norm = None if norm == "none" else _batch_norm(layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.layer(x if isinstance(self.layer, nn.Conv2d) else x.flatten(1)))

    def activate(self, weighted: Tensor) -> Tensor:
        """All that follows the weighted layer."""
        if self.norm is not None:
            weighted = self.norm(weighted)
        follow = relu_dropout_pool if isinstance(self.layer, nn.Conv2d) else relu_dropout
        return follow(weighted, self.drop, self.training)

    @property
    def width(self) -> int:
        """Output units: channels of a convolution, features of a linear layer."""
        return self.layer.out_channels if isinstance(self.layer, nn.Conv2d) else self.layer.out_features

    def plain_layers(self) -> list[nn.Module]:
        """The standard layers that compute the same."""
        normalised = [self.layer] if self.norm is None else [self.layer, self.norm]
        rectified: list[nn.Module] = [*normalised, nn.ReLU(), nn.Dropout(self.drop).train(self.training)]
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
        """Images without the rows and columns that no pooling window covers, in the faster memory format."""
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


def _batch_norm(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Batch normalisation without running statistics, which would follow the newest task and harm the old ones."""
    if isinstance(layer, nn.Conv2d):
        return nn.BatchNorm2d(layer.out_channels, track_running_stats=False)
    return nn.BatchNorm1d(layer.out_features, track_running_stats=False)


def alexnet(
    input_shape: tuple[int, int, int],
    *,
    width: float = 1.0,
    drop1: float = 0.2,
    drop2: float = 0.5,
    norm: Norm = "none",
) -> Backbone:
    """Three convolutions and two linear layers; kernels follow from the size of the image.

    `width` scales the units of every layer, rounded down; `drop1` is for the first two convolutions, `drop2` for the
    rest. `norm` follows each of the five layers.
    """
    channels, height, columns = input_shape
    size = min(height, columns)
    conv1, conv2, conv3, hidden = (max(1, int(units * width)) for units in (64, 128, 256, 2048))
    kernels = (size // 8, size // 10, 2)
    if min(kernels) < 1:
        raise ValueError(f"images of {height} x {columns} are too small: at least 10 x 10 is needed for a kernel")
    blocks = {
        "conv1": Block(Convolution(channels, conv1, kernels[0]), drop1, norm),
        "conv2": Block(Convolution(conv1, conv2, kernels[1]), drop1, norm),
        "conv3": Block(Convolution(conv2, conv3, kernels[2]), drop2, norm),
    }
    for kernel in kernels:
        height, columns = (height - kernel + 1) // 2, (columns - kernel + 1) // 2
    if min(height, columns) < 1:
        raise ValueError(
            f"images of {input_shape[1]} x {input_shape[2]} are too small: nothing is left after the pools"
        )
    blocks["fc1"] = Block(Linear(conv3 * height * columns, hidden), drop2, norm)
    blocks["fc2"] = Block(Linear(hidden, hidden), drop2, norm)
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


def resnet18(input_shape: tuple[int, ...], *, width: float = 1.0, norm: Norm = "group") -> ResNet:
    """Eight residual blocks of two convolutions. The first layer keeps the size of the image, as small ones need it."""
    if len(input_shape) != 3:
        raise ValueError(f"resnet18 takes images (channels, height, width), not {input_shape}")
    return ResNet(input_shape[0], [max(1, int(channels * width)) for channels in RESNET_CHANNELS], norm)


def vit_tiny(input_shape: tuple[int, ...], *, width: float = 1.0) -> ViT:
    """A small vision transformer: 64 patches of an image of 32x32, six layers, three heads of 64 units (times `width`).

    The features are the mean over the patches. Without dropout.
    """
    if len(input_shape) != 3:
        raise ValueError(f"vit-tiny takes images (channels, height, width), not {input_shape}")
    return ViT((input_shape[0], input_shape[1], input_shape[2]), max(1, int(HEAD_WIDTH * width)))


class ResNet(nn.Module):
    """A convolution, eight residual blocks in four groups, the mean over the image.

    Normalised by group. Batch normalisation keeps running statistics, which are not parameters: a mask cannot protect
    them. If they are updated, they follow the newest task and harm the old ones; if they are frozen after the first
    task (`Method.settle_statistics`), they fit only that task. Group normalisation has none.
    """

    def __init__(self, channels: int, widths: list[int], norm: Norm = "group") -> None:
        super().__init__()
        self.widths = tuple(widths)
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.norm = _norm(widths[0], norm)
        blocks: list[Residual] = []
        before = widths[0]
        for index, after in enumerate(widths):
            blocks.append(Residual(before, after, stride=1 if index == 0 else 2, norm=norm))
            blocks.append(Residual(after, after, stride=1, norm=norm))
            before = after
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return x.mean((2, 3))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm = "group") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(after, norm)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(after, norm)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), _norm(after, norm))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _norm(channels: int, kind: Norm) -> nn.GroupNorm | nn.BatchNorm2d:
    """The number of groups: it divides the channels, and a group has at least four channels where possible."""
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(gcd(channels, min(MOST_GROUPS, max(1, channels // 4))), channels)


class ViT(nn.Module):
    """Patches of an image, a learned position of each, layers of attention, the mean over the patches."""

    def __init__(self, input_shape: tuple[int, int, int], head_width: int) -> None:
        super().__init__()
        channels, height, columns = input_shape
        side, width = patch_side(height, columns), HEADS * head_width
        self.widths = (width,)
        self.patches = nn.Conv2d(channels, width, side, stride=side)
        self.positions = nn.Parameter(torch.randn(1, (height // side) * (columns // side), width) * 0.02)
        self.layers = nn.Sequential(*(AttentionLayer(width) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.norm(self.layers(x)).mean(1)


def patch_side(height: int, columns: int) -> int:
    """The largest side that divides the image and leaves at least seven patches along its shorter side."""
    most = max(1, min(height, columns) // FEWEST_PATCHES)
    return next(side for side in range(most, 0, -1) if height % side == columns % side == 0)


class AttentionLayer(nn.Module):
    """Attention and two linear layers, each after a normalisation and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.joined(self.attend(self.norm1(x)))
        return x + self.shrink(F.gelu(self.grow(self.norm2(x))))

    def attend(self, x: Tensor) -> Tensor:
        count, patches, width = x.shape
        # By hand: torch's fused attention need not give the same bits twice on a GPU.
        query, key, value = self.asked(x).view(count, patches, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(2, 3) * (width // HEADS) ** -0.5).softmax(-1)
        return (weights @ value).transpose(1, 2).reshape(count, patches, width)
