"""SPG-FI: SPG's masks with EWC's importance, the Fisher information.

The mirror image of EWC-GI: gradients are masked as in SPG, by an importance that is computed from EWC's Fisher
information. Source: Konishi et al., ICML 2023, section 4.
Remembers between tasks: as SPG, one number per parameter of the backbone.
Equations: importance = |tanh((F - mean F) / std F)| over each tensor, with F as in EWC (batches of 20, true labels,
dropout on); then equations 5 to 7 of that paper. There is no cross-head importance, since the Fisher information of old
heads would need labels.
Departures: the paper does not say how the Fisher information is mapped to 0..1. SPG's own standardisation is the
default; most entries of F are near zero, so most parameters get the same small importance and a few get almost 1.
Cost: a step as in SPG; each task ends with one pass in small batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softmask.core import TaskImportance, importance_of
from softmask.learning import Cost, Scenario, Task, register, require_above_zero
from softmask.learning.fisher import task_fisher
from softmask.methods.ewc import EWC
from softmask.methods.spg import SPG


@register("spg-fi")
class SPGFI(SPG):
    title = "SPG-FI"

    @dataclass(frozen=True)
    class Settings(SPG.Settings):
        fisher_batch: int = 20
        """Images over which a gradient is averaged before it is squared. Default: as in EWC."""
        squashing: Literal["standardise", "maximum", "spread"] = "standardise"
        """How F of a tensor is mapped to 0..1: as in SPG, F / max F, or tanh(F / std F). Default:
        ours; the paper does not say."""

        def __post_init__(self) -> None:
            require_above_zero(self, "fisher_batch")

    def measure(self, task: Task) -> TaskImportance:
        settings = self.settings
        fisher = task_fisher(self, task, settings.fisher_batch, dropout=settings.importance_dropout)
        return TaskImportance({name: squashed(tensor, settings.squashing) for name, tensor in fisher.items()}, {})

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        ends = EWC.cost(scenario).task_end_passes
        return Cost(step=SPG.cost(scenario).step, task_end_passes=ends, kept_copies=1)


def squashed(fisher: Tensor, how: str) -> Tensor:
    """Values from 0 to 1; zero if all entries of the Fisher information are equal."""
    if fisher.min() == fisher.max():
        return torch.zeros_like(fisher)
    if how == "standardise":
        return importance_of(fisher)
    return fisher / fisher.max() if how == "maximum" else torch.tanh(fisher / fisher.std())
