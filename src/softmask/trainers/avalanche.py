"""Soft-masking in an Avalanche strategy (install `avalanche-lib` and a torchvision that matches your torch).

    plugin = SoftMaskPlugin(SoftMask(model.features))
    strategy = Naive(model=model, optimizer=optimizer, criterion=criterion, plugins=[plugin])
    for experience in benchmark.train_stream:
        strategy.train(experience)

For a model with task labels (Avalanche's `MultiTaskModule`), cross-head importance is measured too (eq. 2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from avalanche.core import SupervisedPlugin
from avalanche.models.utils import avalanche_forward
from torch import Tensor

from softmask.core import SoftMask, gradient_importance
from softmask.core.attachment import Attachment


class SoftMaskPlugin(SupervisedPlugin):
    """Protects earlier experiences while a strategy trains; measures the importance to the new one when it ends."""

    def __init__(self, mask: SoftMask, scale: Literal["auto", "gradient", "update"] = "auto") -> None:
        super().__init__()
        self.mask = mask
        self.scale: Literal["auto", "gradient", "update"] = scale
        self.tasks: list[int] = []
        self._attachment: Attachment | None = None

    def before_training_exp(self, strategy: Any, **_: Any) -> None:
        own = {id(parameter) for parameter in self.mask.parameters().values()}
        self._release()  # an earlier training may have been interrupted
        head = [parameter for parameter in strategy.model.parameters() if id(parameter) not in own]
        self._attachment = self.mask.attach(strategy.optimizer, head, self.scale)

    def after_training_exp(self, strategy: Any, **_: Any) -> None:
        self._release()
        now = sorted({int(label) for _, (_, labels) in _Batches(strategy) for label in labels.unique()})

        def own(x: Tensor, y: tuple[Tensor, Tensor]) -> Tensor:
            loss: Tensor = strategy._criterion(avalanche_forward(strategy.model, x, y[1]), y[0])
            return loss

        earlier = [_logits_of(strategy, task) for task in self.tasks if task not in now]
        self.mask.update(gradient_importance(self.mask.backbone, _Batches(strategy), [own, *earlier]))
        self.tasks += [task for task in now if task not in self.tasks]

    def _release(self) -> None:
        if self._attachment is not None:
            self._attachment.remove()
            self._attachment = None


def _logits_of(strategy: Any, task: int) -> Callable[[Tensor, Any], Tensor]:
    def loss(x: Tensor, _: Any) -> Tensor:
        logits: Tensor = avalanche_forward(strategy.model, x, torch.full((len(x),), task, device=x.device))
        return logits.sum()

    return loss


class _Batches:
    """A strategy's training batches as (input, (label, task label))."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy

    def __iter__(self) -> Any:
        for x, y, *_, task in self.strategy.dataloader:
            device = self.strategy.device
            yield x.to(device), (y.to(device), task.to(device))
