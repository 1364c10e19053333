"""SGP: as GPM, but directions that old tasks use little may still move a little.

Scaled gradient projection: the directions of GPM get an importance, and the gradient loses that share of its part along
each of them. Source: Saha and Roy, AAAI 2023, equations 1 to 6; details from their code.
Remembers between tasks: for each layer one symmetric matrix as wide as its input, whatever the number of tasks.
Equations: G <- G - G M diag(importance) M^T, with the basis M of GPM. A task gives each direction the importance (alpha
+ 1) s / (alpha s + s_max), where s is the length of its inputs R along the direction and s_max the largest singular
value of R; over the tasks importances add up, to 1 at most.
Departures: those of GPM. s_max is that of R itself, where the authors take the largest s of the basis.
Cost: that of GPM.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softmask.core import SubspaceMask
from softmask.core.directions import NOISE, with_scaled_basis
from softmask.learning import register, require_above_zero, search
from softmask.methods.gpm import GPM


@register("sgp")
class SGP(GPM):
    title = "SGP"

    @dataclass(frozen=True)
    class Settings(GPM.Settings):
        alpha: float = search(10.0, low=1.0, high=100.0, log=True)
        """How fast importance rises with use: the larger, the closer to GPM. Default: the authors' for ten tasks of
        CIFAR-100."""

        def __post_init__(self) -> None:
            super().__post_init__()
            require_above_zero(self, "alpha")

    def make_mask(self) -> SubspaceMask:
        return ScaledSubspaceMask(self.backbone, self.settings.alpha)


class ScaledSubspaceMask(SubspaceMask):
    """Removes from each direction the share that is its importance, the eigenvalue in `used`."""

    def __init__(self, backbone: torch.nn.Module, alpha: float) -> None:
        self.alpha = alpha
        super().__init__(backbone, strength=0.0, rule="gpm")

    def _taken(self, values: Tensor) -> Tensor:
        return torch.where(values > NOISE, values, 0).clamp(max=1)

    def _with_task(self, name: str, used: Tensor | None, moment: Tensor) -> Tensor:
        if moment.dim() < 3:
            return super()._with_task(name, used, moment)
        return with_scaled_basis(used, moment, self.strength, self.alpha)
