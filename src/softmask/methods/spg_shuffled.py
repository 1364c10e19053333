"""SPG control: the importance of each tensor is permuted among its parameters.

Tests whether it matters which parameters SPG protects: importance is measured and accumulated as in SPG, then assigned
to other parameters of the same tensor. The permutation is drawn once for each tensor, so that a parameter that was
protected stays protected, as in SPG. Source: a control of ours; not in the paper.
Remembers between tasks: as SPG, one number per parameter of the backbone; the permutation follows from the seed.
Equations: those of SPG with the permuted accumulated importance in equation 6; equation 7 is unchanged.
Departures: none; dropout rates are those of SPG, so that only the mechanism differs.
Cost: that of SPG.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from softmask.learning import derive, register
from softmask.methods.spg import SPG


@register("spg-shuffled")
class SPGShuffled(SPG):
    title = "SPG (shuffled importance)"

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        names = {parameter: name for name, parameter in self.named_parameters()}
        return {
            p: self.shuffled(names[p], s) if isinstance(s, Tensor) else s for p, s in super().update_scale().items()
        }

    def shuffled(self, name: str, scale: Tensor) -> Tensor:
        """The same values in a random order, drawn from the run's seed and the parameter's name."""
        generator = torch.Generator().manual_seed(derive(self.scenario.seeds.batches, "shuffled", name))
        order = torch.randperm(scale.numel(), generator=generator).to(scale.device)
        return scale.flatten()[order].view_as(scale)
