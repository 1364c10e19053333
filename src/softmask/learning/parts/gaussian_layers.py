"""Layers whose weights are Gaussian with one standard deviation per output unit (UCL)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning.parts.blocks import Tensors

WeightedLayer = nn.Conv2d | nn.Linear


def weighted_layers(module: nn.Module) -> dict[str, WeightedLayer]:
    """By name, in the order in which they are passed."""
    return {name: part for name, part in module.named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))}


def total_deviation(layer: WeightedLayer) -> float:
    """Of the initial weights, noise included: over the inputs of a linear layer, over the outputs of a convolution."""
    if isinstance(layer, nn.Linear):
        return math.sqrt(2 / layer.in_features)
    return math.sqrt(2 / (layer.out_channels * math.prod(layer.kernel_size)))


def initial_deviation(layer: WeightedLayer, noise_share: float) -> float:
    """Of the noise alone."""
    return total_deviation(layer) * math.sqrt(noise_share)


@torch.no_grad()
def start_gaussian(layer: WeightedLayer, noise_share: float) -> nn.Parameter:
    """Draws the means, zeroes the bias, and returns the rho of each unit: softplus(rho) is its deviation."""
    bound = total_deviation(layer) * math.sqrt(3 * (1 - noise_share))
    layer.weight.uniform_(-bound, bound)
    if layer.bias is not None:
        layer.bias.zero_()
    rho = math.log(math.expm1(initial_deviation(layer, noise_share)))
    return nn.Parameter(torch.full((layer.weight.size(0),) + (1,) * (layer.weight.dim() - 1), rho))


def joined_strengths(layer: WeightedLayer, own: Tensor, below: Tensor | None) -> Tensor:
    """For each weight the larger of the strengths of the two units that it joins; nothing stands below the first layer.

    Where a convolution is flattened into a linear layer, a channel's strength holds for all its positions, which lie
    side by side.
    """
    inputs = layer.weight.size(1)
    below = own.new_zeros(inputs) if below is None else below.repeat_interleave(inputs // len(below))
    joined = torch.maximum(own.unsqueeze(1), below)
    return joined.view(*joined.shape, *(1,) * (layer.weight.dim() - 2)).expand_as(layer.weight).contiguous()


@torch.no_grad()
def springs(
    layers: Mapping[str, WeightedLayer], old_means: Mapping[str, Tensor], old_rhos: Iterable[Tensor], noise_share: float
) -> tuple[Tensors, Tensors]:
    """How the old model pulls at each weight and bias, in the order of the layers: squares of strengths for the squared
    distance, and sigma_init^2 (old mean / old sigma)^2 for the absolute one."""
    curvatures: list[Tensor] = []
    slopes: list[Tensor] = []
    below: Tensor | None = None
    for (name, layer), rho in zip(layers.items(), old_rhos, strict=True):
        wide = initial_deviation(layer, noise_share) / F.softplus(rho)
        strength = wide.flatten()
        curvatures += [joined_strengths(layer, strength, below).square(), strength.square()]
        slopes += [(wide * old_means[f"{name}.weight"]).square(), (strength * old_means[f"{name}.bias"]).square()]
        below = strength
    return tuple(curvatures), tuple(slopes)


def change_of_deviation(rhos: Iterable[Tensor], old_rhos: Iterable[Tensor]) -> Tensor:
    """How far deviations are from the old ones and from 1, over all units: q - log q + sigma^2 - log sigma^2."""
    terms = []
    for rho, old_rho in zip(rhos, old_rhos, strict=True):
        variance = F.softplus(rho).square()
        ratio = variance / F.softplus(old_rho).square()
        terms.append((ratio - ratio.log() + variance - variance.log()).sum())
    return torch.stack(terms).sum()
