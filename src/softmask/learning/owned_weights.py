"""Weights that belong to the task that learned them (PackNet, SpaceNet): tasks use their own and earlier ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from softmask.learning.masked_weights import weights_of
from softmask.learning.networks import Backbone

FREE = 0


class WeightOwners(nn.Module):
    """For every weight the number of its task, from 1; 0 where it is free. Biases have no owner."""

    def __init__(self, shapes: Mapping[str, torch.Size]) -> None:
        super().__init__()
        self.names = list(shapes)
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int16))

    def of(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def free(self) -> dict[str, Tensor]:
        return {name: self.of(name) == FREE for name in self.names}

    def owned_by(self, task: int) -> dict[str, Tensor]:
        return {name: self.of(name) == task + 1 for name in self.names}

    def seen_by(self, task: int) -> dict[str, Tensor]:
        """The weights of the task and of earlier tasks; later tasks have no effect."""
        return {name: (self.of(name) > FREE) & (self.of(name) <= task + 1) for name in self.names}

    def claim(self, task: int, chosen: Mapping[str, Tensor]) -> None:
        """The chosen weights belong to the task from now on."""
        for name, mask in chosen.items():
            self.of(name)[mask] = task + 1

    def used(self) -> dict[str, Tensor]:
        """1.0 where a weight has an owner."""
        return {name: (self.of(name) > FREE).float() for name in self.names}


def seen_features(backbone: Backbone, x: Tensor, seen: Mapping[str, Tensor]) -> Tensor:
    """The backbone's output with all other weights 0. A select, not a product, since weights may be infinite."""
    weights = {
        f"{name}.layer.weight": torch.where(seen[name], weight, 0.0) for name, weight in weights_of(backbone).items()
    }
    return functional_call(backbone, weights, (x,))


def freeze_biases(backbone: Backbone, frozen: bool) -> None:
    """All tasks share the biases, so they are trained only in the first task."""
    for block in backbone.blocks:
        if block.layer.bias is not None:
            block.layer.bias.requires_grad_(not frozen)
