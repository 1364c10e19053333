"""From a run's events to metrics over steps: the one stream that every tracker gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from softmask.experiments.runs.events import IDENTITY

EPOCH_FIELDS = {"train_loss": "train/loss", "val_loss": "validation/loss", "val_accuracy": "validation/accuracy"}


@dataclass(frozen=True)
class Point:
    """Metrics at one step: an epoch, counted over the whole run, or a task."""

    axis: Literal["epoch", "task"]
    step: int
    values: dict[str, float]


class PointStream:
    """Turns events into points. Work that was done again after a kill gives none: its metrics are the same."""

    def __init__(self) -> None:
        self._seen: set[tuple[Any, ...]] = set()
        self._epochs = 0

    def points(self, event: Mapping[str, Any]) -> Iterator[Point]:
        kind = event["kind"]
        identity = (kind, *(event[field] for field in IDENTITY.get(kind, ())))
        if kind not in IDENTITY or identity in self._seen:
            return
        self._seen.add(identity)
        if kind == "epoch":
            self._epochs += 1
            named = {EPOCH_FIELDS.get(name, name): event.get(name) for name in ("lr", "task", *EPOCH_FIELDS)}
            yield Point("epoch", self._epochs, _numbers(named))
        elif kind == "accuracy":
            values = {f"{name}/task {event['task'] + 1:03}": event.get(name) for name in ("test", "validation")}
            yield Point("task", event["after"] + 1, _numbers(values))
        else:
            seconds = {f"seconds/{name}": event.get(f"{name}_seconds") for name in ("learn", "end")}
            yield Point("task", event["task"] + 1, _numbers({**seconds, "facts": event.get("facts")}))


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """All numbers, finite or not; nested ones are named by their path."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}/{inner}": number for inner, number in _numbers(value).items()}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    return found
