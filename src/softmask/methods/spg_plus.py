"""SPG+: SPG's soft mask, together with distillation of the old heads' answers to the new images.

A mask slows important parameters down but does not change the minimum that training approaches; a distillation term in
the loss does. SPG+ has both, under SPG's constraints: no old data, and only the heads grow with the tasks. Source:
ours; the parts are those of Konishi et al., ICML 2023, and of Li and Hoiem, ECCV 2016.
Remembers between tasks: as SPG, one importance per backbone parameter. While a task is learned, a frozen copy of the
backbone is the teacher.
Equations: loss = cross-entropy + answers * sum over old heads of T^2 KL(softmax(old / T) || softmax(new / T)), on the
images of the new task, dropout off on both sides; gradients are scaled as in equations 6 and 7 of SPG, with the
importance multiplied by `mask`. With answers 0 and mask 1 this is SPG, with both 0 it is NCL, with mask 0 alone it is
LwF, each to the bit.
Departures from SPG: the factor `mask` in equations 6 and 7. Importance itself is measured by equations 1 to 5, from the
cross-entropy alone.
Cost: the passes of SPG at task ends, unless the mask is 0; a step has, in addition, the teacher's forward pass and,
with dropout, a second pass of the student.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from softmask.core import SoftMask
from softmask.learning import (
    Cost,
    DistillingMethod,
    Facts,
    Scenario,
    Task,
    register,
    require_above_zero,
    require_not_negative,
    search,
)
from softmask.methods.lwf import distilling_step
from softmask.methods.spg import SPG


@register("spg-plus")
class SPGPlus(SPG, DistillingMethod):
    title = "SPG+"

    @dataclass(frozen=True)
    class Settings(SPG.Settings):
        answers: float = search(1.0, low=0.1, high=10.0, log=True)
        """Weight of the distillation loss of each old head; 0 is none. Default: that of LwF."""
        temperature: float = search(2.0, low=1.0, high=8.0, log=True)
        """Temperature of both softmax functions: the higher, the more small probabilities count. Default: that of
        LwF."""
        mask: float = search(0.5, low=0.0, high=1.0)
        """Factor of the importance in the mask: 1 is SPG's mask, 0 is none. Default: ours, by validation accuracy on
        five tasks of C-10 (docs/research/spg-plus.md)."""
        lr: float | None = search(0.1, low=5e-3, high=0.5, log=True)
        """Learning rate; None means the training's. Default: that of LwF, found in the same way."""

        def __post_init__(self) -> None:
            require_not_negative(self, "answers", "mask")
            require_above_zero(self, "temperature", "lr")
            if self.mask > 1:
                raise ValueError(f"mask must be from 0 to 1, not {self.mask}")

    def make_mask(self) -> SoftMask:
        return ScaledMask(self.backbone, self.settings.mask)

    def strength_of_answers(self) -> float:
        return float(self.settings.answers)

    def name_of_draws(self) -> str:
        """With answers 0 and mask 1 this is SPG, to the bit."""
        return SPG.__name__

    def end_task(self, task: Task) -> Facts:
        """Without a mask the importance, and the passes that measure it, are not needed."""
        DistillingMethod.end_task(self, task)
        return super().end_task(task) if self.settings.mask > 0 else {}

    @classmethod
    def cost(cls, scenario: Scenario) -> Cost:
        spg = SPG.cost(scenario)
        step = spg.step * distilling_step(scenario.num_tasks)
        return Cost(step=step, task_end_passes=spg.task_end_passes, kept_copies=2, note=spg.note)


class ScaledMask(SoftMask):
    """A soft mask with `strength` times the importance: 1 is SPG's mask, 0 is no mask."""

    def __init__(self, backbone: nn.Module, strength: float) -> None:
        self.strength = strength
        super().__init__(backbone)

    def effective(self, importance: Tensor) -> Tensor:
        return self.strength * importance
