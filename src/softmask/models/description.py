"""What a model folder says of itself: `config.json`, checked field by field before anything follows from it."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from softmask.errors import SoftmaskError
from softmask.images.labelled import COLOUR
from softmask.learning.task import Normalisation
from softmask.storage.reading import too_many_brackets

FORMAT = 1
LARGEST_SIDE, MOST_CLASSES, MOST_TASKS, LONGEST_NAME = 4096, 100_000, 10_000, 200
MOST_PROBED = 1_000_000
SMALLEST_SPREAD = 1e-6  # of pictures, whose values lie in 0..1: divided by less, they would leave the range of floats


class DescriptionError(SoftmaskError):
    """A description that cannot be that of a model."""


@dataclass(frozen=True)
class KnownTask:
    """A task that the model has learned, as it was when it was learned."""

    __pydantic_config__ = {"extra": "forbid"}

    name: str
    classes: tuple[str, ...]
    samples: int
    """Training samples."""
    accuracy: float
    """On the validation set, when it was learned."""
    epochs: int
    seconds: float
    learned: str
    """When, in UTC."""
    room: float | None
    """The share of an update that the average parameter kept afterwards; None if the method has no such mask."""
    probe: int = 0
    """How many validation samples were kept, to see later whether answers change."""
    inputs: str = ""
    """`bytes`, which are normalised, or `floats`, which are taken as they are; empty where it was not noted."""

    def __post_init__(self) -> None:
        check_name(self.name, "a task's name")
        check_name(self.learned, "the time of learning")
        for name in self.classes:
            check_name(name, "a class's name")
        if not 2 <= len(self.classes) <= MOST_CLASSES or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"task {self.name!r} needs 2 to {MOST_CLASSES} classes, no two of one name")
        if self.samples < 1 or self.epochs < 0 or not 0 <= self.probe <= MOST_PROBED:
            raise ValueError(f"task {self.name!r}: a count is out of range")
        if not all(0 <= share <= 1 for share in (self.accuracy, self.room or 0)) or not math.isfinite(self.seconds):
            raise ValueError(f"task {self.name!r}: its accuracy, room or time is out of range")


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model but its numbers. Replaced as a whole by every `learn`: this is what makes it happen."""

    __pydantic_config__ = {"extra": "forbid"}

    network: str
    """`alexnet`, `resnet18`, `mlp`, or `module:function` of one's own."""
    input_shape: tuple[int, ...]
    width: float = 1.0
    method: str = "spg"
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 1
    mean: tuple[float, ...] = ()
    """Per channel, for pictures and other bytes; numbers that are no bytes are taken as they are."""
    std: tuple[float, ...] = ()
    generation: int = 0
    """Names the file with the numbers."""
    tasks: tuple[KnownTask, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.network, "a network's name")
        if not self.input_shape or not all(1 <= side <= LARGEST_SIDE for side in self.input_shape):
            raise ValueError(f"input_shape needs sides of 1 to {LARGEST_SIDE}, not {self.input_shape}")
        if len(self.input_shape) > 4 or not 0 < self.width <= 8 or self.seed < 0 or self.generation < 0:
            raise ValueError("input_shape, width, seed or generation is out of range")
        if len(self.tasks) > MOST_TASKS or len({task.name for task in self.tasks}) != len(self.tasks):
            raise ValueError("too many tasks, or two of one name")
        if len(self.mean) != len(self.std) or not all(spread >= SMALLEST_SPREAD for spread in self.std):
            raise ValueError("mean and std do not fit each other")
        if (self.mean and len(self.mean) != self.input_shape[0]) or not all(map(math.isfinite, self.mean + self.std)):
            raise ValueError("mean and std do not fit the channels of input_shape")

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(len(task.classes) for task in self.tasks)

    @property
    def normalise(self) -> Normalisation | None:
        return Normalisation(self.mean, self.std) if self.mean else None

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}


def default_normalisation(input_shape: tuple[int, ...]) -> Normalisation | None:
    """For pictures: the same constants for every task, so that tasks share what the first layers see."""
    if len(input_shape) != 3:
        return None
    return COLOUR if input_shape[0] == 3 else Normalisation((0.5,) * input_shape[0], (0.25,) * input_shape[0])


def parse_config(text: str, where: str) -> ModelConfig:
    """What a file says, or one line on why it is no description of a model."""
    if too_many_brackets(text):
        raise DescriptionError(f"{where}: refused, it has far more lists than a description of its length")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"{where}: not readable as JSON ({str(error)[:100]})") from None
    found = raw.pop("format", None) if isinstance(raw, dict) else None
    if type(found) is not int or found < 1:
        raise DescriptionError(f"{where}: not the description of a softmask model")
    if found > FORMAT:
        raise DescriptionError(f"{where}: format {found}, from a later release; this one reads up to {FORMAT}: update")
    try:
        return TypeAdapter(ModelConfig).validate_json(json.dumps(raw), strict=True)
    except (ValidationError, RecursionError, ValueError) as error:
        raise DescriptionError(f"{where}: {_in_words(error)}") from None


def check_name(name: str, what: str) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise ValueError(f"{what} is 1 to {LONGEST_NAME} printable characters, not {name!r:.50}")


def _in_words(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)[:200]
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place + ': ' if place else ''}{first['msg'].removeprefix('Value error, ')}"[:300]
