"""EWC-GI: EWC's penalty, weighted by SPG's gradient-based importance.

Separates the choice of importance from its use: the penalty of EWC, weighted by SPG's accumulated gradient-based
importance, which is measured through old heads too. Source: Konishi et al., ICML 2023, section 4.
Remembers between tasks: the last weights of the backbone and the accumulated importance.
Equations: loss = cross-entropy + strength / 2 * sum of importance * (weight - anchor)^2; importance by equations 1 to 5
of that paper: the maximum over tasks, not EWC's mean. No gradient is masked. Clipped at a joint norm of 100 as in EWC.
Departures: old heads share dropout masks, as in SPG; the paper gives neither the strength nor its search range.
Importance reaches 1, so plain SGD at a rate of 0.25 is stable only for a strength below 8: EWC's own range would
diverge.
Cost: a step as in EWC, task ends as in SPG.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from softmask.learning import Cost, Scenario, Task, register, require_above_zero, require_not_negative, search
from softmask.methods.ewc import EWC
from softmask.methods.spg import SPG, measure_importance


@register("ewc-gi")
class EWCGI(EWC):
    title = "EWC-GI"
    default_dropout = None
    dropout_source = "searched for SPG on each sequence and published by Konishi et al."

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(1.0, low=1e-4, high=8.0, log=True)
        """Regularisation strength. The range ends with the largest value that is stable at a learning rate of 0.25 with
        an importance of 1. Default: ours, an eighth of that; the paper gives none."""
        importance_dropout: bool = True
        """Whether dropout is on while importance is measured. Default: as in SPG."""
        penalty_in_validation: bool = True
        """Whether the best epoch is chosen with the penalty or by cross-entropy alone. Default: as in EWC."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method.
        At 0.05 five times the strength is stable."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "lr")

    def measure(self, task: Task) -> dict[str, Tensor]:
        old_heads = [self.heads[index] for index in range(task.id)]
        return measure_importance(self, task, old_heads, dropout=self.settings.importance_dropout).combine_()

    def merged(self, old: Tensor, new: Tensor, past_tasks: int) -> Tensor:
        """Eq. 5."""
        return torch.maximum(old, new)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        step, ends = EWC.cost(scenario).step, SPG.cost(scenario)
        return Cost(step=step, task_end_passes=ends.task_end_passes, kept_copies=2, note=ends.note)
