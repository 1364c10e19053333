"""Copies of the heads of earlier tasks, for cross-head importance (eq. 2)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


class KeptHeads:
    """Copies of the module called `name` in a model, one for each task learned so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.modules: list[nn.Module] = []
        self._loaded: list[Mapping[str, Tensor]] | None = None

    def current(self, model: nn.Module) -> nn.Module:
        try:
            return model.get_submodule(self.name)
        except AttributeError:
            known = ", ".join(name for name, _ in model.named_children())
            raise ValueError(
                f"{type(model).__name__} has no module {self.name!r} to use as the head; it has {known}"
            ) from None

    def keep(self, model: nn.Module) -> None:
        self.modules.append(copy.deepcopy(self.current(model)).requires_grad_(False))

    def states(self) -> list[Mapping[str, Tensor]]:
        """The states to save, including those that were loaded and not yet rebuilt."""
        return [head.state_dict() for head in self.modules] if self._loaded is None else self._loaded

    def load(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Replaces all heads (possibly by none); they are built when a model is available."""
        self._loaded = list(states)

    def rebuild(self, model: nn.Module) -> None:
        """Builds the loaded heads as copies of the current one; linear heads may have other sizes."""
        if self._loaded is None:
            return
        states, self.modules = self._loaded, []
        for state in states:
            head: nn.Module = copy.deepcopy(self.current(model))
            if isinstance(head, nn.Linear):
                classes, features = state["weight"].shape
                head = nn.Linear(features, classes, bias="bias" in state).to(head.weight)
            try:
                head.load_state_dict(state)
            except RuntimeError as error:
                raise ValueError(
                    f"the head of task {len(self.modules) + 1} was saved from another kind of module: {error}"
                ) from None
            self.modules.append(head.requires_grad_(False))
        self._loaded = None

    @contextmanager
    def in_place(self, model: nn.Module, head: nn.Module) -> Iterator[None]:
        """Replaces the current head by an old one."""
        current = self.current(model)
        owner, _, last = self.name.rpartition(".")
        setattr(model.get_submodule(owner), last, head)
        try:
            yield
        finally:
            setattr(model.get_submodule(owner), last, current)
