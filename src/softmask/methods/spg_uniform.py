"""SPG control: every parameter of a tensor gets the tensor's mean importance.

Tests whether SPG protects by its ranking of parameters or merely by slowing them down: importance is measured and
accumulated as in SPG, and the updates of each tensor of the backbone are scaled down by the same amount in total, but
uniformly. Source: a control of ours; not in the paper.
Remembers between tasks: as SPG, one number per parameter of the backbone.
Equations: those of SPG with the mean over a tensor of the accumulated importance in equation 6; equation 7, which uses
the mean over the whole backbone, is unchanged.
Departures: none; dropout rates are those of SPG, so that only the mechanism differs.
Cost: that of SPG.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from softmask.learning import register
from softmask.methods.spg import SPG


@register("spg-uniform")
class SPGUniform(SPG):
    title = "SPG (uniform importance)"

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        scales = super().update_scale()
        # In float64: the mean of millions of numbers.
        return {p: s.double().mean().item() if isinstance(s, Tensor) else s for p, s in scales.items()}
