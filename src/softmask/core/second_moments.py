"""Second moments of vectors, gathered batch by batch: in full, as a factor of low rank, or of one-hot vectors.

All are in float64: in float32 rounding errors would look like directions in use.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class Gram:
    """The sum of x x^T."""

    def __init__(self, groups: int, width: int, device: torch.device) -> None:
        self._sum = torch.zeros(groups, width, width, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        rows = rows.to(self._sum)
        self._sum.baddbmm_(rows.transpose(1, 2), rows)

    def normalised(self) -> Tensor:
        """The moment over all processes, scaled to mean eigenvalue 1; zero if all inputs were zero."""
        if _distributed():
            dist.all_reduce(self._sum)
        mean = self._sum.diagonal(dim1=1, dim2=2).mean(1)
        return (self._sum / _divisor(mean)[:, None, None]).cpu()


class Sketch:
    """A factor f [groups, width, rank] with f f^T close to the sum of x x^T: its largest `rank` directions."""

    def __init__(self, groups: int, width: int, rank: int, device: torch.device) -> None:
        self._factor = torch.zeros(groups, width, rank, dtype=torch.float64, device=device)
        self._trace = torch.zeros(groups, dtype=torch.float64, device=device)

    def add(self, rows: Tensor) -> None:
        rows, rank = rows.to(self._factor), self._factor.shape[2]
        self._trace += rows.square().sum((1, 2))
        for part in rows.split(max(rank, 64), dim=1):
            self._factor = leading(torch.cat([self._factor, part.transpose(1, 2)], 2), rank)

    def normalised(self) -> Tensor:
        if _distributed():
            dist.all_reduce(self._trace)
            parts = [torch.empty_like(self._factor) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, self._factor)
            self._factor = leading(torch.cat(parts, 2), self._factor.shape[2])
        mean = self._trace / self._factor.shape[1]
        return (self._factor / _divisor(mean).sqrt()[:, None, None]).cpu()


class Counts:
    """How often each index occurred: the diagonal of the moment of one-hot vectors."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._sum = torch.zeros(size, dtype=torch.float64, device=device)

    def add(self, indices: Tensor) -> None:
        self._sum += torch.bincount(indices.to(self._sum.device), minlength=len(self._sum))

    def normalised(self) -> Tensor:
        if _distributed():
            dist.all_reduce(self._sum)
        return (self._sum / _divisor(self._sum.mean())).cpu()


def leading(factor: Tensor, rank: int) -> Tensor:
    """The best factor of this rank: orthogonal columns, the longest first."""
    vectors, lengths, _ = torch.linalg.svd(factor, full_matrices=False)
    return (vectors * lengths[:, None])[..., :rank]


def _divisor(mean: Tensor) -> Tensor:
    return torch.where(mean > 0, mean, 1)


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
