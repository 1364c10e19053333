"""What can be told about a model without any data but what it kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softmask.models.description import KnownTask

LITTLE_ROOM = 0.1


@dataclass(frozen=True)
class Drift:
    """How a task's kept samples are answered now, against the day on which it was learned."""

    task: str
    samples: int
    accuracy_then: float
    accuracy_now: float
    changed: float
    """Share of samples whose answer is another one."""
    moved: float
    """Mean absolute change of the probabilities."""


@dataclass(frozen=True)
class Inspection:
    """Tasks, importance by layer, room left, size."""

    path: str
    network: str
    method: str
    input_shape: tuple[int, ...]
    parameters: int
    bytes: int
    tasks: Sequence[KnownTask]
    importance: dict[str, float]
    """Mean by layer; empty for a method without a mask."""
    room: float | None
    blocked: float | None
    """Share of parameters that cannot move at all."""
    drift: Sequence[Drift] = ()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def room_warning(tasks: Sequence[KnownTask]) -> str | None:
    """Told before there is no room at all; None while there is enough, or for a method without a mask."""
    rooms = [task.room for task in tasks if task.room is not None]
    if not rooms:
        return None
    room = rooms[-1]
    # The next task may leave the same share of what it finds as the last one did.
    expected = room * room / rooms[-2] if len(rooms) > 1 and rooms[-2] else room
    if min(room, expected) >= LITTLE_ROOM:
        return None
    return (
        f"the network is nearly full: {100 * room:.0f} % of an update is left to the average parameter, so new tasks "
        "will be learned slowly or badly; a wider network (--width) has more room"
    )
