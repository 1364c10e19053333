"""Methods that are right, though they use the hooks as none of ours does: the contract holds for them, too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from softmask import testing
from softmask.learning.fit import Fitter
from softmask.learning.method import Method, Step
from softmask.learning.registry import METHODS, Entry
from softmask.learning.task import Task


class Teacher(Method):
    """Answers with a slow copy of its weights, which no optimizer trains."""

    def build(self) -> None:
        super().build()
        self.teacher = copy.deepcopy(self.backbone).requires_grad_(False)

    def features(self, x: Tensor, task: int) -> Tensor:
        return super().features(x, task) if self.training else self.teacher(x)

    @torch.no_grad()
    def after_step(self, step: Step) -> None:
        for slow, weight in zip(self.teacher.parameters(), self.backbone.parameters(), strict=True):
            slow.lerp_(weight, 0.2)


class TwoPhases(Method):
    """Trains one part, then the other, each by a Fit of its own; a Fit takes what is trainable when it is made."""

    order: Callable[[Method], tuple[torch.nn.Module, torch.nn.Module]]

    def learn(self, task: Task, fit: Fitter) -> None:
        first, second = type(self).order(self)
        for name, trained, frozen in (("first", first, second), ("second", second, first)):
            frozen.requires_grad_(False)
            trained.requires_grad_(True)
            fit(self, name).run().restore_best()
        self.backbone.requires_grad_(True)


class HeadFirst(TwoPhases):
    order = staticmethod(lambda method: (method.heads, method.backbone))


class BackboneFirst(TwoPhases):
    order = staticmethod(lambda method: (method.backbone, method.heads))


@pytest.mark.parametrize("check", [testing.check_interrupted_equals_uninterrupted, testing.check_state_is_complete])
@pytest.mark.parametrize("unusual", [Teacher, HeadFirst, BackboneFirst])
def test_an_unusual_method_keeps_the_contract(
    unusual: type[Method], check: Callable[[str, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    METHODS.names()
    monkeypatch.setattr(unusual, "title", "unusual", raising=False)
    monkeypatch.setitem(METHODS._entries, "unusual", Entry("unusual", unusual))
    check("unusual", tmp_path)
