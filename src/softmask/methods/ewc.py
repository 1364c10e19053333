"""EWC: a quadratic penalty keeps weights with high Fisher information near their old values.

Elastic weight consolidation: each parameter is penalised for its squared distance from its value after the last task,
weighted by its Fisher information averaged over the tasks so far. Source: Kirkpatrick et al., PNAS 2017, equation 3;
its authors published no code, so details follow HAT's authors (Serra et al., ICML 2018), as the paper's comparison
does.
Remembers between tasks: the last weights of the backbone and one merged Fisher, whatever the number of tasks.
Equations: loss = cross-entropy + strength / 2 * sum of F * (weight - anchor)^2. At the end of task k: F_new = 20 / N *
sum over batches of 20 of (gradient of the batch's mean loss)^2, with true labels and dropout on; F <- (F_new + k F) /
(k + 1). Gradients are clipped at a joint norm of 100.
Departures: heads carry no penalty, which changes nothing without momentum (old heads do not move, a new one has F = 0);
the default strength is below HAT's 5000, with which plain SGD overshoots at the paper's learning rate, five times
theirs.
Cost: a step costs about a tenth more; each task ends with one pass in small batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from softmask.learning import (
    Cost,
    Facts,
    QuadraticPenaltyMethod,
    Scenario,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.learning.fisher import task_fisher


@register("ewc")
class EWC(QuadraticPenaltyMethod):
    title = "EWC"
    family = "regularisation"
    default_dropout: ClassVar[tuple[float, float] | None] = (0.2, 0.5)
    dropout_source = "the authors of HAT, for this AlexNet"
    clip = 100.0

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(400.0, low=1.0, high=1e5, log=True)
        """Regularisation strength. Its scale depends on `fisher_batch`, since F shrinks with the batch size. Default:
        ours, a conservative value. The authors of HAT choose 5000 out of 500 to 50000, at a learning rate of 0.05. At
        0.25 a step overshoots above about 430 (D-5) and 780 (C-10), and results become erratic: three tasks of C-10 end
        at chance with 1130 and well with 6059."""
        fisher_batch: int = 20
        """Images over which a gradient is averaged before it is squared. Default: as in the code of HAT's authors."""
        importance_dropout: bool = True
        """Whether dropout is on while the Fisher information is measured. Default: as in the code of HAT's authors."""
        penalty_in_validation: bool = True
        """Whether the best epoch is chosen with the penalty or by cross-entropy alone. Default: as in the code of HAT's
        authors."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every method.
        The code of HAT's authors has 0.05, where five times the strength is stable."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "fisher_batch", "lr")

    def end_task(self, task: Task) -> Facts:
        self.anchor.copy_(self.backbone.parameters())
        old = self.importance.by_name()
        for name, new in self.measure(task).items():
            old[name].copy_(self.merged(old[name], new, task.id))
        return self.stability.facts()

    def measure(self, task: Task) -> dict[str, Tensor]:
        settings = self.settings
        return task_fisher(self, task, settings.fisher_batch, dropout=settings.importance_dropout)

    def merged(self, old: Tensor, new: Tensor, past_tasks: int) -> Tensor:
        """The mean over all tasks."""
        return (new + past_tasks * old) / (past_tasks + 1)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        # Batches of 20 cost about twice as much an image as batches of 64.
        return Cost(step=1.15, task_end_passes=2 * scenario.num_tasks, kept_copies=2)
