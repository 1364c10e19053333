"""Gates on the units of a backbone, and the weights that lie between units in use (HAT and what builds on it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from softmask.kernels.dropout import where_above
from softmask.learning.networks import Backbone


def gated(backbone: Backbone, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
    """The backbone's output with a gate on every unit of every block.

    Numeric gates multiply. Boolean gates select, since the output of a closed unit may be infinite.
    """
    x = backbone.prepare(x)
    for block, gate in zip(backbone.blocks, gates, strict=True):
        x = block(x)
        spread = gate.to(x.dtype).view(1, -1, *[1] * (x.dim() - 2))
        x = where_above(x, spread, 0.5) if gate.dtype == torch.bool else x * spread
    return x


def between_used_units(backbone: Backbone, used: Sequence[Tensor]) -> dict[str, Tensor]:
    """For each parameter, by name: whether the units that it connects are both in use; of soft gates, the smaller one.

    For a weight these are the unit it enters and the unit it leaves, for a bias its own; the image's channels always
    count as used. After a flatten every unit stands for several inputs, one after the other.
    """
    found = {}
    before = torch.ones(1, dtype=used[0].dtype, device=used[0].device)
    for (name, block), after in zip(backbone.named_blocks.items(), used, strict=True):
        weight = block.layer.weight
        inputs = before.repeat_interleave(weight.size(1) // len(before))
        connected = torch.minimum(after[:, None], inputs)
        found[f"{name}.layer.weight"] = connected.view(*connected.shape, *[1] * (weight.dim() - 2)).expand_as(weight)
        found[f"{name}.layer.bias"] = after
        before = after
    return found


def scale_down(free: Mapping[Tensor, Tensor]) -> None:
    """Multiplies gradients by the free share under soft gates."""
    for parameter, share in free.items():
        if parameter.grad is not None:
            parameter.grad.mul_(share)


def keep_only(free: Mapping[Tensor, Tensor]) -> None:
    """Zeroes gradients where the mask is 0. A select, not a product: an infinite gradient becomes an exact zero too."""
    for parameter, mask in free.items():
        if parameter.grad is not None:
            where_above.grad_input(parameter.grad, mask, 0.5, grad_input=parameter.grad)
