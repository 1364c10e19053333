"""SPG without cross-head importance: old heads are ignored when importance is measured.

SPG with one thing left out: importance is measured through the task's own head only, so that parameters that matter
only to old heads are less protected. Source: Konishi et al., ICML 2023, ablation study.
Remembers between tasks: as SPG, one number per parameter of the backbone.
Equations: those of SPG with equation 4 reduced to its own-head term.
Departures: dropout rates are those of SPG, so that only the mechanism differs.
Cost: as SPG, but a task ends with a single pass over its data.
"""

from collections.abc import Sequence

from torch import nn

from softmask.learning import Cost, Scenario, Task, register
from softmask.methods.spg import SPG


@register("spg-no-chi")
class SPGWithoutCrossHeadImportance(SPG):
    title = "SPG (w/o CHI)"

    def old_heads(self, task: Task) -> Sequence[nn.Module]:
        return []

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=SPG.cost(scenario).step, task_end_passes=scenario.num_tasks, kept_copies=1)
