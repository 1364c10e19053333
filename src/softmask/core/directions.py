"""Directions of a layer's inputs: how much old tasks use each, and the projection onto the free part.

A layer's use is the sum over tasks of the second moments of its inputs, each of mean eigenvalue 1 (or, under the hard
rule, the projector onto the blocked directions). With its eigenvectors v_i the update D of a step becomes D P,

    P = sum_i (1 - taken_i) v_i v_i^T,   0 <= taken_i <= 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softmask.core.second_moments import leading

RULES = ("sgp", "ridge", "gpm")
MIDDLE_ALPHA = 10.0
"""SGP's alpha at strength 0.5."""
NOISE = 1e-12
"""Eigenvalues below this share of the largest are rounding errors of float32 inputs."""


def taken(values: Tensor, rule: str, strength: float) -> Tensor:
    """The blocked share of each direction, by its eigenvalue (along the last dimension). It never falls with the
    strength; it is 0 at strength 0, and at strength 1 every direction in use is fully blocked.
    """
    if strength == 0:
        return torch.zeros_like(values)
    top = values.amax(-1, keepdim=True)
    used = values > NOISE * top
    if rule == "gpm" or strength == 1:
        return used.to(values.dtype)
    odds = strength / (1 - strength)
    if rule == "ridge":
        share = values / (values + 1 / odds)  # M (M + lambda I)^-1: a conceptor (Jaeger, 2014), lambda = 1 / odds
    else:
        root, scale = (values / top).clamp(min=0).sqrt(), (MIDDLE_ALPHA + 1) * odds
        share = scale * root / ((scale - 1) * root + 1)  # Saha and Roy, AAAI 2023; alpha = scale - 1
    return torch.where(used, share, 0)


def with_task(used: Tensor | None, moment: Tensor, rule: str, strength: float) -> Tensor:
    """The use by old tasks and one more. A square matrix stays square, and a low-rank factor stays a low-rank
    factor."""
    if moment.dim() < 3:
        return moment if used is None else used + moment
    if rule == "gpm":
        return _with_basis(torch.zeros_like(moment) if used is None else used, moment, strength)
    if used is None:
        return moment
    return used + moment if is_square(moment) else leading(torch.cat([used, moment], 2), moment.shape[2])


def _with_basis(basis: Tensor, moment: Tensor, threshold: float) -> Tensor:
    """Gradient projection memory (Saha et al., ICLR 2021): the new directions join the old ones."""
    vectors, _ = new_directions(basis, moment, threshold)
    if is_square(moment):
        return basis + vectors @ vectors.transpose(1, 2)
    both = torch.cat([basis, vectors], 2)  # columns of length 1 or 0
    # Older directions stay; once the rank is reached, no new ones are added.
    first = (both.square().sum(1) > 0.5).int().argsort(dim=1, descending=True, stable=True)[:, : moment.shape[2]]
    return both.gather(2, first[:, None].expand(-1, moment.shape[1], -1))


def new_directions(basis: Tensor, moment: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The directions outside the basis, those with the most energy first, until the share of the task's energy that is
    covered reaches the threshold; and the energy of each. Directions that are not needed are zero."""
    square, width = is_square(moment), moment.shape[1]
    if square:
        free = torch.eye(width, dtype=moment.dtype) - basis
        rest = free @ moment @ free
    else:
        rest = moment - basis @ (basis.transpose(1, 2) @ moment)
    values, vectors = eigen(rest, square)
    # The moment's trace is `width`; a factor may hold less of it.
    whole = moment.diagonal(dim1=1, dim2=2).sum(1) if square else moment.square().sum((1, 2))
    covered = (whole - values.sum(1))[:, None] / width + (values.cumsum(1) - values) / width
    new = (covered < threshold) & (values > NOISE * width)
    return vectors * new[:, None], values * new


def task_directions(basis: Tensor, moment: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The task's own directions (Lin et al., ICLR 2022), old ones and new ones, for a square moment of one group.

    Directions inside and outside the basis are sorted together by the task's energy along them; the first ones count
    until their share of the energy reaches the threshold. Columns that do not count are zero.
    """
    width = moment.shape[1]
    free = torch.eye(width, dtype=moment.dtype) - basis
    (old_energy, old), (new_energy, new) = (eigen(part @ moment @ part, square=True) for part in (basis, free))
    energy = torch.cat([old_energy, new_energy], 1)[0]
    order = energy.argsort(descending=True, stable=True)
    before = energy[order].cumsum(0) - energy[order]
    counts = torch.zeros_like(energy)
    counts[order] = ((before / width < threshold) & (energy[order] > NOISE * width)).to(energy.dtype)
    return old * counts[:width], new * counts[width:]


def with_scaled_basis(used: Tensor | None, moment: Tensor, threshold: float, alpha: float) -> Tensor:
    """Scaled gradient projection (Saha and Roy, AAAI 2023): V diag(importance) V^T, for a square moment.

    Directions join as in gradient projection memory. A task gives each of them the importance
    (alpha + 1) s / (alpha s + s_max), where s^2 is its energy along the direction; importances add up to at most 1.
    """
    values, known = eigen(torch.zeros_like(moment) if used is None else used, square=True)
    values = torch.where(values > NOISE, values, 0)
    known = known * (values > 0)[:, None]
    new, energy = new_directions(known @ known.transpose(1, 2), moment, threshold)
    # The largest singular value of the task's inputs. Where many directions are fully blocked, rounding decides which
    # of their rotations `eigen` finds, so the largest value along one of them would be arbitrary.
    top = eigen(moment, square=True)[0][:, :1].sqrt()

    def importance(energies: Tensor) -> Tensor:
        length = energies.clamp(min=0).sqrt()
        return (alpha + 1) * length / (alpha * length + top).clamp(min=NOISE)

    along = (known * (moment @ known)).sum(1)
    both = torch.cat([known, new], 2)
    shares = torch.cat([(values + importance(along)).clamp(max=1), importance(energy).clamp(max=1)], 1)
    return (both * shares[:, None]) @ both.transpose(1, 2)


def eigen(used: Tensor, square: bool) -> tuple[Tensor, Tensor]:
    """Eigenvalues, the largest first, and eigenvectors [groups, width, k] of a square matrix or of a factor."""
    if square:
        values, vectors = torch.linalg.eigh(used)
        return values.flip(1).clamp(min=0), vectors.flip(2)
    vectors, lengths, _ = torch.linalg.svd(used, full_matrices=False)
    return lengths.square(), vectors


def is_square(used: Tensor) -> bool:
    return used.shape[-1] == used.shape[-2]


class Projection:
    """P for changes [groups, outputs, width], in the cheapest of its forms."""

    def __init__(self, used: Tensor, columns: slice, taken: Callable[[Tensor], Tensor], like: Tensor) -> None:
        square = is_square(used)
        values, vectors = eigen(used[:, columns, columns] if square else used[:, columns], square)
        gone = taken(values)
        width, rank = vectors.shape[1:]
        self.free = 1 - float(gone.sum(1).mean()) / width
        """The share of the directions that is free: the trace of P over its size."""
        some = int((gone > 0).sum(1).max())
        left = width if rank < width else int((gone < 1).sum(1).max())
        self.is_identity, self.is_zero = some == 0, left == 0
        self._subtracts = some <= left
        self._left = self._right = torch.empty(0)
        # `gone` decreases along the directions. Two products with a thin matrix cost less than one with a square
        # matrix.
        self._thin = rank < width or 2 * min(some, left) < width
        if self._thin:
            which = slice(0, some) if self._subtracts else slice(width - left, width)
            factor = gone if self._subtracts else 1 - gone
            self._left = _like((vectors * factor[:, None])[..., which], like)
            self._right = _like(vectors[..., which].transpose(1, 2), like)
        else:
            self._left = _like((vectors * (1 - gone)[:, None]) @ vectors.transpose(1, 2), like)

    def __call__(self, change: Tensor) -> Tensor:
        if self.is_zero:
            return torch.zeros_like(change)
        if not self._thin:
            return change @ self._left
        part = change @ self._left @ self._right
        return change - part if self._subtracts else part


def _like(matrix: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device, and not in half precision."""
    return matrix.to(torch.promote_types(parameter.dtype, torch.float32)).contiguous().to(parameter.device)
