"""Penalties on how far parameters have gone from an anchor, with gradients by hand.

Autograd would go through all parameters a dozen times and allocate as much memory each time.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from softmask.learning.parts.blocks import Tensors, blocks


@torch.no_grad()
def quadratic_penalty(parameters: Tensors, anchors: Tensors, curvatures: Tensors) -> Tensor:
    """`1/2 * sum of curvature * (parameter - anchor)^2`, without a gradient."""
    terms = []
    for parameter, anchor, curvature in blocks(parameters, anchors, curvatures):
        away = parameter - anchor
        terms.append(_dot(away * curvature, away))
    return _total(terms) / 2


@torch.no_grad()
def add_quadratic_pull(parameters: Tensors, anchors: Tensors, curvatures: Tensors, scale: float) -> None:
    """Adds the gradient of `scale` times that penalty."""
    for gradient, parameter, anchor, curvature in blocks(gradients_of(parameters), parameters, anchors, curvatures):
        gradient.add_((parameter - anchor).mul_(curvature), alpha=scale)


@torch.no_grad()
def absolute_penalty(parameters: Tensors, anchors: Tensors, slopes: Tensors) -> Tensor:
    """`sum of slope * |parameter - anchor|`, without a gradient."""
    every = blocks(parameters, anchors, slopes)
    return _total([_dot((parameter - anchor).abs_(), slope) for parameter, anchor, slope in every])


@torch.no_grad()
def add_absolute_pull(parameters: Tensors, anchors: Tensors, slopes: Tensors, scale: float) -> None:
    """Adds the gradient of `scale` times that penalty; at the anchor it is zero."""
    for gradient, parameter, anchor, slope in blocks(gradients_of(parameters), parameters, anchors, slopes):
        gradient.addcmul_((parameter - anchor).sign_(), slope, value=scale)


def inner_product(left: Iterable[Tensor], right: Iterable[Tensor]) -> Tensor:
    """Of two lists of tensors, each taken as one vector."""
    return _total([_dot(a, b) for a, b in zip(left, right, strict=True)])


def gradients_of(parameters: Iterable[Tensor]) -> Tensors:
    """The parameters' `.grad`; where there is none, zeros are put."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        found.append(parameter.grad)
    return tuple(found)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    return torch.dot(left.reshape(-1), right.reshape(-1))


def _total(terms: list[Tensor]) -> Tensor:
    """Summed in float64, so that many terms keep the sign of a small sum."""
    return torch.stack(terms).sum(dtype=torch.float64).to(terms[0].dtype)
