"""LwF: distils the old heads' answers to the new images, so that they stay the same.

Learning without forgetting: before a task begins, the model is copied. While the task is learned, the answers of the
old heads to the new images are distilled from this copy. Source: Li and Hoiem, ECCV 2016, equations 2 and 3.
Remembers between tasks: only the network. While a task is learned, a frozen copy of the backbone is the teacher.
Equations: loss = cross-entropy + strength * sum over old heads of T^2 KL(softmax(old / T) || softmax(new / T)), on the
images of the new task alone; old = the answers of the model as the task began. Its gradient is that of the paper's
cross-entropy between the two times T^2, which keeps its size independent of T (Hinton, Vinyals and Dean, 2015).
Departures: old heads do not change, where the authors train them further; there is no phase in which the new head is
trained alone; dropout is off for teacher and student. The distillation term is part of the validation loss; otherwise
the best epoch would be chosen by the new task alone.
Cost: from the second task on a step has, in addition, the teacher's forward pass and, with dropout, a second pass of
the student.
"""

from __future__ import annotations

from dataclasses import dataclass

from softmask.learning import (
    Cost,
    DistillingMethod,
    Scenario,
    register,
    require_above_zero,
    require_not_negative,
    search,
)


@register("lwf")
class LwF(DistillingMethod):
    title = "LwF"
    family = "regularisation"
    default_dropout = (0.2, 0.5)
    dropout_source = "the authors of HAT, for this AlexNet"

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        strength: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the distillation loss of each old head; 0 is plain fine-tuning. Default: the authors'."""
        temperature: float = search(2.0, low=1.0, high=8.0, log=True)
        """Temperature of both softmax functions: the higher, the more small probabilities count. Default: the
        authors'."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: ours; at 0.25 training collapses on D-5 (preset `short`,
        seed 1), and all five tasks end at chance."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "temperature", "lr")

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=distilling_step(scenario.num_tasks), kept_copies=1)


def distilling_step(tasks: int) -> float:
    """The mean cost of a step: after the first task it adds the student's second pass and, at a third of that, the
    teacher's forward pass."""
    return 1 + 4 / 3 * (tasks - 1) / tasks
