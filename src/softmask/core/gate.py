"""RetentionGate: undoes an update that forgets too much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from softmask.core.answers import IGNORED, Forward, call, evaluating
from softmask.core.parameters import unwrapped

PROBES_AT_ONCE = 256
ROUNDING = 1e-9
Curves = Mapping[str, Sequence[float]]
"""For each old task its accuracy (or agreement with its old answers): first as it was learned, then over the update."""


class RetentionError(RuntimeError):
    """An old task keeps less than the required share of its accuracy. `curves` has its accuracy over the update."""

    def __init__(self, share: float, curves: Curves, lost: Sequence[str]) -> None:
        self.share, self.curves, self.lost = share, curves, tuple(lost)
        accuracies = [f"{name} {' '.join(f'{100 * value:.1f}' for value in curves[name])}" for name in lost]
        super().__init__(
            f"{len(lost)} of {len(curves)} old tasks kept less than {100 * share:g} % of what they knew; accuracy in "
            f"percent, as learned and then during the update: {'; '.join(accuracies)}"
        )


def require_retained(share: float, curves: Curves) -> None:
    """Raises unless every task still has this share of its first accuracy."""
    if lost := [name for name, curve in curves.items() if curve[-1] < share * curve[0] - ROUNDING]:
        raise RetentionError(share, curves, lost)


def check_share(share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"the share to retain must be in 0..1, not {share!r}")


@dataclass(frozen=True)
class Probe:
    """Inputs of an old task with their labels, or with the model's answers when the probe was added."""

    x: Any
    expected: Tensor
    head: nn.Module | None


class RetentionGate:
    """Undoes an update of a model that forgets too much.

        gate = RetentionGate(backbone, share=0.98)
        gate.add("birds", probe_x, probe_y, head=birds_head)     # a few dozen labelled inputs of each old task
        gate.add("boats", other_x, head=boats_head)              # or unlabelled: the current answers are the reference
        with gate:
            for epoch in range(10):
                train_one_epoch()                                # your own loop, or `trainer.fit(...)`
                gate.measure()                                   # optional: adds a point to the curve

    At the end of the block every old task is measured. If one has less than `share` of the accuracy (or agreement) that
    it had when its probe was added, the weights and buffers of the model and the heads are restored, and
    `RetentionError` is raised with the curves. They are also restored after any other exception. The optimizer's state
    is not restored: create a new optimizer for the next attempt.

    `head(model(x))` are the logits; without a head, the model's output or its `logits`. Labels of -100 do not count.
    """

    def __init__(self, model: nn.Module, share: float = 0.98, forward: Forward = call) -> None:
        check_share(share)
        self.model, self.share, self.forward = model, share, forward
        self.probes: dict[str, Probe] = {}
        self.curves: dict[str, list[float]] = {}
        self._before: list[tuple[nn.Module, dict[str, Any]]] = []

    def add(self, name: str, x: Any, y: Tensor | None = None, head: nn.Module | None = None) -> None:
        """Adds a probe: from now on this task must not be forgotten. A probe of the same name is replaced."""
        probe = Probe(x, torch.empty(0) if y is None else y, head)
        if y is None:
            probe = Probe(x, self._predicted(probe), head)
        accuracy = self._accuracy(probe)
        self.probes[name], self.curves[name] = probe, [accuracy]

    def measure(self) -> dict[str, float]:
        """The current accuracy (or agreement) of every old task, which is also added to `curves`."""
        found = {name: self._accuracy(probe) for name, probe in self.probes.items()}
        for name, value in found.items():
            self.curves[name].append(value)
        return found

    def __enter__(self) -> RetentionGate:
        if not self.probes:
            raise RuntimeError("the gate has no old tasks: call add(name, x, y, head) for each")
        for curve in self.curves.values():
            del curve[1:]
        heads = {id(probe.head): probe.head for probe in self.probes.values() if probe.head is not None}
        parts = [unwrapped(self.model), *heads.values()]
        self._before = [(part, _copied(part.state_dict())) for part in parts]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, self._before = self._before, []
        try:
            if error is None:
                self.measure()
                require_retained(self.share, self.curves)
        except BaseException:
            _restore(before)
            raise
        if error is not None:
            _restore(before)

    def _accuracy(self, probe: Probe) -> float:
        predicted = self._predicted(probe)
        expected = probe.expected.to(predicted.device)
        if expected.shape != predicted.shape:
            raise ValueError(
                f"labels of shape {tuple(expected.shape)} for answers of shape {tuple(predicted.shape)}: one each"
            )
        counted = expected != IGNORED
        if not counted.any():
            raise ValueError("a probe needs at least one input whose label counts")
        return (predicted == expected)[counted].double().mean().item()

    @torch.no_grad()
    def _predicted(self, probe: Probe) -> Tensor:
        inner, head = unwrapped(self.model), probe.head or nn.Identity()
        parts = probe.x.split(PROBES_AT_ONCE) if isinstance(probe.x, Tensor) else [probe.x]
        found = []
        with evaluating(inner), evaluating(head):
            for part in parts:
                output = self.forward(inner, part)
                found.append(head(getattr(output, "logits", output)).argmax(-1))
        return torch.cat(found)


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def _restore(before: Sequence[tuple[nn.Module, Mapping[str, Any]]]) -> None:
    for part, state in before:
        part.load_state_dict(state)
