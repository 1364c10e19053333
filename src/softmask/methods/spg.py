"""SPG: a soft mask scales down the updates of parameters that are important to old tasks.

Scales the gradient of each parameter of the backbone by one minus its accumulated importance to old tasks, and that of
the current head by one minus the average importance. Source: Konishi et al., ICML 2023, equations 1 to 7.
Remembers between tasks: one importance per backbone parameter, whatever the number of tasks.
Importance: the gradient of the loss, summed over the training batches, standardised over each tensor, |tanh|; the same
through every old head, with the sum of its logits as loss; the largest value counts.
Departures from the authors' code: in the importance pass, as many old heads as memory allows share a forward pass, and
so its dropout masks; only the accumulated importance is kept, as the paper says, not one per task. As in their code,
the gradients of heads, and only those, are clipped at a joint norm of 10,000, before they are scaled.
Cost: a step costs 1 % more; task k ends with up to k + 1 passes over its data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from softmask.core import SoftMask, TaskImportance, task_importance
from softmask.learning import Cost, Facts, Method, Scenario, Task, blocked_shares, register
from softmask.learning.capacity import cross_head_facts


@register("spg")
class SPG(Method):
    title = "SPG"
    family = "soft-masking"
    default_dropout = None
    dropout_source = "searched for SPG on each sequence and published by Konishi et al."
    head_clip = 1e4  # the authors clip the heads' gradients, and only those; it never comes to bear

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        importance_dropout: bool = True
        """Whether dropout is on while importance is measured. Default: as in the authors' code."""

    def build(self) -> None:
        super().build()
        self.mask = self.make_mask()

    def make_mask(self) -> SoftMask:
        return SoftMask(self.backbone)

    def update_scale(self) -> Mapping[nn.Parameter, Tensor | float]:
        """Eq. 6 and 7, as factors of the update: for plain SGD the same as scaling gradients, in one pass."""
        watched = self.mask.parameters()
        kept: dict[nn.Parameter, Tensor | float] = {p: self.mask.factor(name, p) for name, p in watched.items()}
        return kept | {parameter: self.head_factor() for parameter in self.heads.parameters()}

    def head_factor(self) -> float:
        return 1 - self.mask.mean()

    def clip_gradients(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), self.head_clip)

    def end_task(self, task: Task) -> Facts:
        found = self.measure(task)
        facts = cross_head_facts(found.own, found.cross, self.mask.importance)
        self.mask.update(found.combine_())
        masks = {name: self.mask.effective(importance) for name, importance in self.mask.importance.items()}
        return {"importance_mean": self.mask.mean(), "blocked": blocked_shares(masks), **facts}

    def measure(self, task: Task) -> TaskImportance:
        return measure_importance(self, task, self.old_heads(task), dropout=self.settings.importance_dropout)

    def old_heads(self, task: Task) -> Sequence[nn.Module]:
        """The heads for cross-head importance: those of all earlier tasks."""
        return [self.heads[index] for index in range(task.id)]

    def get_extra_state(self) -> dict[str, Any]:
        return self.mask.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.mask.load_state_dict(state)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        tasks = scenario.num_tasks
        # Old heads share a forward pass, a third of an epoch; each adds 0.3 (its last layer is in closed form).
        passes = tasks + (tasks - 1) / 3 + 0.3 * tasks * (tasks - 1) / 2
        return Cost(step=1.01, task_end_passes=passes, kept_copies=1, note="task ends grow with the number of heads")


def measure_importance(method: Method, task: Task, old_heads: Sequence[nn.Module], *, dropout: bool) -> TaskImportance:
    """Eq. 1-4 as `SoftMask.consolidate` measures them, under draws that depend on the method and the task alone."""
    with method.own_randomness(task):
        method.train(dropout)
        found = task_importance(method.backbone, task.train, method.heads[task.id], old_heads)
        method.eval()
    return found
