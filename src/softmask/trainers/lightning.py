"""Soft-masking in a Lightning Trainer (extra `lightning`).

callback = SoftMaskCallback(SoftMask(module.backbone), head="head")
for loader in tasks:
    module.head = torch.nn.Linear(...)                         # a new head for each task
    Trainer(max_epochs=5, callbacks=[callback]).fit(module, loader)

`GuardCallback(protect(module.backbone), head="head")` does the same for `protect`, whose loss the module must add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Literal

import torch.nn.functional as F
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from softmask.core import SoftMask
from softmask.core.attachment import Attachment, concerned
from softmask.core.protect import Guard, GuardedSteps
from softmask.trainers.heads import KeptHeads


class SoftMaskCallback(Callback):
    """Protects earlier tasks while a Trainer fits; measures the importance to the new task when fitting ends.

    Batches are `(x, y)`, and importance is measured with `loss(head(backbone(x)), y)`. Use one callback for all tasks:
    it keeps a copy of each task's head (`heads`). Lightning's checkpoints contain importance and these heads. Those
    written while a task is fitted do not include that task yet; `trainer.save_checkpoint` after `fit` does.
    """

    def __init__(
        self,
        mask: SoftMask,
        head: str = "head",
        loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
        scale: Literal["auto", "gradient", "update"] = "auto",
    ) -> None:
        self.mask, self.loss = mask, loss
        self.scale: Literal["auto", "gradient", "update"] = scale
        self.kept = KeptHeads(head)
        self._attachments: list[Attachment] = []

    @property
    def heads(self) -> list[nn.Module]:
        """Copies of the heads of the tasks learned so far."""
        return self.kept.modules

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()
        head = self.kept.current(pl_module)
        self.kept.rebuild(pl_module)
        of_head = list(head.parameters())
        concerned_ones = [each for each in trainer.optimizers if concerned(self.mask, each, of_head)]
        self._attachments = [
            self.mask.attach(optimizer, head, self.scale) for optimizer in concerned_ones or trainer.optimizers
        ]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()
        self.mask.consolidate(_OnDevice(trainer, pl_module), self.kept.current(pl_module), self.heads, self.loss)
        self.kept.keep(pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return {"mask": self.mask.state_dict(), "heads": self.kept.states()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.mask.load_state_dict(state_dict["mask"])
        self.kept.load(state_dict["heads"])

    def _release(self) -> None:
        for attachment in self._attachments:
            attachment.remove()
        self._attachments = []


class GuardCallback(Callback):
    """Attaches a guard of `protect` while a Trainer fits; when fitting ends, the new task is protected, too.

    Add the guard's loss in the module's `training_step`: `loss + guard(x, features)`. `head` names the head inside the
    module, for guards that need one. Lightning's checkpoints contain the state of the guard.
    """

    def __init__(self, guard: Guard, head: str | None = "head") -> None:
        self.guard, self.head = guard, head
        self._steps: list[GuardedSteps] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()
        self._steps = [self.guard.attach(optimizer) for optimizer in trainer.optimizers]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()
        head = None if self.head is None else pl_module.get_submodule(self.head)
        self.guard.consolidate(_OnDevice(trainer, pl_module), head)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._release()

    def state_dict(self) -> dict[str, Any]:
        return self.guard.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.guard.load_state_dict(state_dict)

    def _release(self) -> None:
        for steps in self._steps:
            steps.remove()
        self._steps = []


class _OnDevice:
    """The training batches as the Trainer passes them to the module; can be iterated again.

    One epoch; for a stream, which may be endless, as many batches as there were steps.
    """

    def __init__(self, trainer: Trainer, module: LightningModule) -> None:
        self.trainer, self.module = trainer, module

    def __iter__(self) -> Iterator[Any]:
        loader, count = self.trainer.train_dataloader, self.trainer.num_training_batches
        most = int(count) if count != float("inf") else self.trainer.global_step
        for batch in islice(() if loader is None else loader, most):  # not `loader or ()`: a loader may have no length
            converted = self.trainer.precision_plugin.convert_input(batch)
            prepared = self.module.on_before_batch_transfer(converted, 0)
            moved = self.module.transfer_batch_to_device(prepared, self.module.device, 0)
            yield self.module.on_after_batch_transfer(moved, 0)
