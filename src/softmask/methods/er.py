"""ER: stores a few samples of old tasks in a replay buffer and adds some of them to each batch.

Experience replay: a reservoir of fixed size holds samples of all tasks so far. As many samples as a batch has are drawn
from it and added to the batch. Source: Chaudhry et al., "On tiny episodic memories in continual learning", 2019,
algorithm 1, with reservoir sampling (Vitter, 1985).
Remembers between tasks: `budget` training images with their labels and tasks, whatever the number of tasks.
Equations: the loss of a step is the mean cross-entropy over the batch and the replayed samples together, each
classified by its own task's head. Old heads are trained further on replayed samples.
Departures: the authors see each sample once and fill the reservoir during training. Here a task has many epochs, so its
samples enter at its end, uniformly over all samples seen. Replayed images are not augmented. The best epoch is chosen
by the validation data of the new task alone.
Cost: from the second task on, in proportion to the replayed samples: a step costs twice as much if there are as many as
in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from softmask.learning import (
    Cost,
    ReplayMethod,
    Scenario,
    Step,
    register,
    require_above_zero,
    require_not_negative,
    search,
)


@register("er")
class ER(ReplayMethod):
    title = "ER"

    @dataclass(frozen=True)
    class Settings:
        __pydantic_config__ = {"extra": "forbid"}

        budget: int = 500
        """Samples stored in all, by reservoir sampling over all tasks; 0 is plain fine-tuning. Default: the middle
        value of Buzzega et al. (2020), who compare 200, 500 and 5120."""
        replay_batch: int = 64
        """Samples replayed in each step. Default: as many as a batch of the
        training has, as the authors."""
        lr: float | None = search(None, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: the training's, which Konishi et al. use for every
        method."""

        def __post_init__(self) -> None:
            require_not_negative(self, "budget")
            require_above_zero(self, "replay_batch", "lr")

    def replay_loss(self, step: Step) -> Tensor:
        return self.loss_of(self.drawn(step).after(step.x, step.y, step.task.id), step.task.id)

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        return Cost(step=replayed_step(scenario.num_tasks, passes=1), note=f"keeps {cls.Settings().budget:,} images")


def replayed_step(tasks: int, passes: float) -> float:
    """The mean cost of a step that has this many additional passes of a batch's size after the first task."""
    return 1 + passes * (tasks - 1) / tasks
