"""Small quadratic programmes, solved exactly by a maintained solver."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

NOISE = 1e-6
"""Eigenvalues below this share of the largest are rounding errors: the matrix is a product of float32 vectors."""


def smallest_quadratic(matrix: Tensor, linear: Tensor, floor: float = 0.0) -> Tensor:
    """The `v >= floor` of the smallest `1/2 v P v + q v`, for `P = G G^T` and `q = G g`.

    As non-negative least squares of `u = v - floor`: with `P = A^T A`, it is the `u >= 0` of the smallest `|A u - b|`,
    where `A^T b = -(q + P floor)`. Rows of G may depend on each other.
    """
    from scipy.optimize import nnls  # slow to import

    device, scale = matrix.device, float(matrix.diagonal().max())
    if scale == 0:
        return torch.full_like(linear, floor)
    p, q = (each.detach().cpu().double().numpy() / scale for each in (matrix, linear))
    values, vectors = np.linalg.eigh(p)
    kept = values > NOISE * values.max()
    root, directions = np.sqrt(values[kept]), vectors[:, kept].T
    right = -(directions @ (q + p.sum(1) * floor)) / root
    found, _ = nnls(root[:, None] * directions, right)
    return torch.from_numpy(found + floor).to(device, linear.dtype)
