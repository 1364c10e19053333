"""LwF: what the old heads answer to the new images is distilled, so that it stays the same.

Learning without forgetting: before a task begins, the model is remembered; while the task is learned, the old heads
shall go on answering the new images as the remembered model does. Source: Li and Hoiem, ECCV 2016, equations 2 and 3.
Remembers between tasks: nothing but the network. While a task is learned, a frozen copy of the backbone is the teacher.
Equations: loss = cross-entropy + strength * sum over old heads of T^2 KL(softmax(old / T) || softmax(new / T)), on the
images of the new task alone; old = the answers of the model as the task began. Its gradient is that of the paper's
cross-entropy between the two times T^2, which keeps its size independent of T (Hinton, Vinyals and Dean, 2015).
Departures: old heads stay as they are, to the bit, where the authors train them along; there is no phase in which the
new head is trained alone; dropout is off on both sides of the distillation. The distance counts in validation as in
training: without it, the best epoch would be that of the new task alone.
Cost: from the second task on a step costs the teacher's forward pass more, and with dropout a second pass of the
student.
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
        """Factor of the distance of each old head's answers; 0 is plain fine-tuning. Default: the authors'."""
        temperature: float = search(2.0, low=1.0, high=8.0, log=True)
        """Of both softmax functions: the higher, the more small probabilities count. Default: the authors'."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: ours: at 0.25 the network breaks down on D-5 (preset
        `short`, seed 1), and all five tasks end at chance."""

        def __post_init__(self) -> None:
            require_not_negative(self, "strength")
            require_above_zero(self, "temperature", "lr")

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=distilling_step(scenario.num_tasks), kept_copies=1)


def distilling_step(tasks: int) -> float:
    """The mean cost of a step: after the first task the student's second pass, and the teacher's forward, a third."""
    return 1 + 4 / 3 * (tasks - 1) / tasks
