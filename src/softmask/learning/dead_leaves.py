"""Images that belong to no task and need no file: dead leaves, discs of random colours that cover each other.

Their edges, sizes and occlusions follow the statistics of natural images (Lee, Mumford and Huang, 2001); networks learn
useful features from them (Baradad et al., NeurIPS 2021).
"""

from __future__ import annotations

import torch
from torch import Tensor

from softmask.learning.seeds import derive

LEAVES = 40
"""Discs of an image."""
SMALLEST, LARGEST = 0.05, 0.4
"""Radii, as shares of the image's smaller side; small ones are more frequent, as in 1 / r^3."""


def dead_leaves(count: int, shape: tuple[int, int, int], *seed: int | str) -> Tensor:
    """[count, channels, height, width] of mean 0 and deviation 1; the same for the same seed on every machine."""
    channels, height, width = shape
    draws = torch.Generator().manual_seed(derive("dead leaves", *seed))
    images = torch.randn(count, channels, 1, 1, generator=draws).expand(count, *shape).clone()
    rows, columns = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    for _ in range(LEAVES):
        top, left, size = torch.rand(3, count, 1, 1, generator=draws)
        # The inverse of the distribution of radii.
        radius = (SMALLEST**-2 + size * (LARGEST**-2 - SMALLEST**-2)) ** -0.5 * min(height, width)
        inside = (rows - top * height) ** 2 + (columns - left * width) ** 2 <= radius**2
        colour = torch.randn(count, channels, 1, 1, generator=draws)
        images = torch.where(inside[:, None], colour, images)
    return (images - images.mean()) / images.std()
