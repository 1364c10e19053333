"""Named seeds: each random choice of a run has its own, so that one can be changed while the others stay."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Seeds:
    """Where the randomness of a run comes from."""

    order: int = 1
    """Which classes form which task, and the order of the tasks."""
    split: int = 1
    """Which samples are for training, validation and test."""
    init: int = 1
    """The initial weights."""
    batches: int = 1
    """The order of the batches, dropout, and every other draw while learning."""

    @classmethod
    def all_from(cls, seed: int) -> Seeds:
        return cls(order=seed, split=seed, init=seed, batches=seed)


def derive(*parts: int | str) -> int:
    """A seed that follows from these parts alone, the same on every machine."""
    text = "/".join(map(str, parts)).encode("utf-8", "surrogateescape")  # names of files need not be text
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1  # torch takes seeds below 2**63


class Draws(nn.Module):
    """Random draws of a method's own, apart from those of dropout and of the batches.

    The n-th draw follows from the seed, the task and n alone, and n is part of the state: it survives a restart.
    """

    count: Tensor

    def __init__(self, *seed: int | str) -> None:
        super().__init__()
        self.seed = seed
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def generator(self, task: int, device: torch.device | str = "cpu") -> torch.Generator:
        """For the next draw."""
        self.count += 1
        return torch.Generator(device).manual_seed(derive(*self.seed, task, int(self.count)))
