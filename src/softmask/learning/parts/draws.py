"""Random draws of a method's own, apart from those of dropout and of the batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softmask.learning.seeds import derive


class Draws(nn.Module):
    """The n-th draw follows from the seed, the task and n alone, and n is part of the state: it survives a restart."""

    count: Tensor

    def __init__(self, *seed: int | str) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def generator(self, task: int, device: torch.device | str = "cpu") -> torch.Generator:
        """For the next draw."""
        self.count += 1
        return torch.Generator(device).manual_seed(derive(*self.seed, task, int(self.count)))
