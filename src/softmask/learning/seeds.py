"""Named seeds: each kind of randomness in a run has its own, so that it can be changed independently."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Seeds:
    """The seeds of a run."""

    order: int = 1
    """Which classes form which task, and the order of the tasks."""
    split: int = 1
    """Which samples are for training, validation and test."""
    init: int = 1
    """The initial weights."""
    batches: int = 1
    """The order of the batches, dropout, and all other randomness of training."""

    @classmethod
    def all_from(cls, seed: int) -> Seeds:
        return cls(order=seed, split=seed, init=seed, batches=seed)


def derive(*parts: int | str) -> int:
    """A seed derived from these parts, the same on every machine."""
    text = "/".join(map(str, parts)).encode("utf-8", "surrogateescape")  # names of files need not be text
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1  # torch takes seeds below 2**63


class Draws(nn.Module):
    """A method's own random numbers, independent of those of dropout and batches. The n-th draw depends only on the
    seed, the task and n, and n is part of the state, so that it survives a restart.
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
