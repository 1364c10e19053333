"""A ResNet-18 for small images, with a rule for its normalisation layers that suits continual learning.

Batch normalisation keeps running statistics, which are no parameters: a mask cannot protect them. Left free they follow
the newest task and spoil the old ones; frozen after the first task they fit no task but that one. Group normalisation
has none: it treats every image alike, in training and afterwards, whatever the task. So that is what is used here.
"""

from __future__ import annotations

from math import gcd

import torch.nn.functional as F
from torch import Tensor, nn

STAGES = (64, 128, 256, 512)
MOST_GROUPS = 32  # as its authors advise


def resnet18(input_shape: tuple[int, ...], *, width: float = 1.0) -> ResNet:
    """Eight residual blocks of two convolutions. The first layer keeps the size of the image, as small ones need it."""
    if len(input_shape) != 3:
        raise ValueError(f"resnet18 takes images (channels, height, width), not {input_shape}")
    return ResNet(input_shape[0], [max(1, int(channels * width)) for channels in STAGES])


class ResNet(nn.Module):
    """A convolution, four stages of two residual blocks each, the mean over the image."""

    def __init__(self, channels: int, stages: list[int]) -> None:
        super().__init__()
        self.widths = tuple(stages)
        self.stem = nn.Conv2d(channels, stages[0], 3, padding=1, bias=False)
        self.norm = _norm(stages[0])
        blocks: list[Residual] = []
        before = stages[0]
        for index, after in enumerate(stages):
            blocks += [Residual(before, after, stride=1 if index == 0 else 2), Residual(after, after, stride=1)]
            before = after
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return x.mean((2, 3))


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), _norm(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _norm(channels: int) -> nn.GroupNorm:
    """As many groups as divide the channels, of four channels at least where there are so many."""
    return nn.GroupNorm(gcd(channels, min(MOST_GROUPS, max(1, channels // 4))), channels)
