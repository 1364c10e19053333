"""A batch size that a network can be trained with to the last sample."""

from __future__ import annotations

from torch import nn


def avoid_singleton_batch(network: nn.Module, batch: int, count: int) -> int:
    """Batch normalisation cannot be trained with a single sample, which may be what is left for the last batch."""
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in network.modules()):
        while count > 1 and count % batch == 1:
            batch += 1
    return batch
