"""SPG with a hard mask: a parameter is either frozen or free.

SPG with one thing changed: a parameter whose accumulated importance lies above a threshold is blocked, any other is
free. Source: Konishi et al., ICML 2023, ablation study, which takes the best of four thresholds for each dataset.
Remembers between tasks: as SPG, one number per parameter of the backbone; the threshold acts on it afterwards, which is
the same as a maximum over thresholded tasks.
Equations: those of SPG with 1[importance > threshold] for the importance in equations 6 and 7.
Departures: the paper does not say by what the head's gradient is scaled; here by one minus the share of blocked
parameters, or optionally by one minus the average soft importance. Dropout rates are those of SPG, so that only the
mechanism differs.
Cost: that of SPG.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from softmask.core import SoftMask
from softmask.learning import register, search
from softmask.methods.spg import SPG


@register("spg-hard")
class SPGHard(SPG):
    title = "SPG (w/ hard-masking)"

    @dataclass(frozen=True)
    class Settings(SPG.Settings):
        threshold: float = search(0.6, choices=(0.2, 0.4, 0.6, 0.8))
        """Parameters with importance above it are blocked. Default: ours, the second largest of the four values that
        the paper tries; with a low threshold little free capacity is left."""
        head_factor: Literal["binary", "soft"] = "binary"
        """The head's updates are scaled by one minus the average of the hard mask or, optionally, of the soft
        importance. Default: ours; the paper does not say."""

        def __post_init__(self) -> None:
            if not 0 <= self.threshold <= 1:
                raise ValueError(f"threshold must be from 0 to 1, not {self.threshold}")

    def make_mask(self) -> SoftMask:
        return SoftMask(self.backbone, threshold=self.settings.threshold)

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        """Nothing is blocked during the first task: zero importance never blocks, whatever the threshold."""
        free = not any(importance.any() for importance in self.mask.importance.values())
        return {} if free else super().update_scale()

    def head_factor(self) -> float:
        if self.settings.head_factor == "binary":
            return super().head_factor()
        total = sum(tensor.sum().item() for tensor in self.mask.importance.values())
        return 1 - total / sum(tensor.numel() for tensor in self.mask.importance.values())
