"""The contract notices what it is there to notice."""

from pathlib import Path

import pytest
import torch

from softmask.learning.catalogue import METHODS
from softmask.learning.method import Method, Step
from softmask.learning.registry import Entry
from softmask.testing import check_memory_does_not_grow_with_steps


class Hoarder(Method):
    """Keeps every loss it has seen, outside of its state."""

    title = "hoarder"

    def build(self) -> None:
        super().build()
        self.seen: list[torch.Tensor] = []

    def after_step(self, step: Step) -> None:
        self.seen.append(step.x.mean())


def test_memory_that_grows_with_steps_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    METHODS.names()
    monkeypatch.setitem(METHODS._entries, "hoarder", Entry("hoarder", Hoarder))
    with pytest.raises(AssertionError, match="bytes after 2 epochs"):
        check_memory_does_not_grow_with_steps("hoarder", tmp_path)
