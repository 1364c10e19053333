"""Whether plain SGD can follow a quadratic penalty at all: known before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from torch import Tensor

# A step multiplies the distance to the anchor by 1 - lr * curvature: beyond this it grows.
LIMIT = 2.0


@dataclass(frozen=True)
class Stability:
    """Learning rate times curvature, over all parameters that a penalty pulls."""

    penalty_rate_largest: float = 0.0
    penalty_rate_above_2: float = 0.0
    """Share of the parameters that lie above the limit."""

    @classmethod
    def at(cls, lr: float, scale: float, curvatures: Iterable[Tensor]) -> Stability:
        """For a penalty of `scale / 2 * sum of curvature * distance^2`."""
        factor, largest, above, entries = lr * scale, 0.0, 0, 0
        for curvature in curvatures:
            largest = max(largest, factor * curvature.max().item())
            above += int((curvature * factor > LIMIT).sum())
            entries += curvature.numel()
        return cls(largest, above / entries)

    def warn(self, title: str, strength: str, lr: float) -> Stability:
        """Only a warning: few entries above the limit need not ruin a run, and the rate falls while it trains."""
        if self.penalty_rate_largest > LIMIT:
            warnings.warn(
                f"{title} with {strength} may diverge at a learning rate of {lr:g}: rate times curvature reaches "
                f"{self.penalty_rate_largest:.3g} and lies above {LIMIT:g}, where steps overshoot, for "
                f"{self.penalty_rate_above_2:.2%} of the parameters. Lower the strength or the rate.",
                stacklevel=2,
            )
        return self

    def facts(self) -> dict[str, float]:
        return asdict(self)
