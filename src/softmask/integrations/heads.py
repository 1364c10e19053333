"""The heads of earlier tasks, kept by a callback so that cross-head importance (eq. 2) can ask them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


class KeptHeads:
    """Copies of the module that is called `name` in a model, one for each task that was learned."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.modules: list[nn.Module] = []

    def current(self, model: nn.Module) -> nn.Module:
        try:
            return model.get_submodule(self.name)
        except AttributeError:
            known = ", ".join(name for name, _ in model.named_children())
            raise ValueError(
                f"{type(model).__name__} has no part {self.name!r} to be the head; it has {known}"
            ) from None

    def keep(self, model: nn.Module) -> None:
        self.modules.append(copy.deepcopy(self.current(model)).requires_grad_(False))

    @contextmanager
    def in_place(self, model: nn.Module, head: nn.Module) -> Iterator[None]:
        """An old head where the current one is."""
        current = self.current(model)
        owner, _, last = self.name.rpartition(".")
        setattr(model.get_submodule(owner), last, head)
        try:
            yield
        finally:
            setattr(model.get_submodule(owner), last, current)


def first_tensor(output: Any) -> Any:
    """The logits of a model's answer, whatever it is wrapped in."""
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output
