"""The description of a model, `config.json`: checked field by field before it is used."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from softmask.errors import SoftmaskError
from softmask.images.labelled import COLOUR
from softmask.learning.task import Normalisation
from softmask.storage.reading import too_many_brackets

FORMAT = 2
LARGEST_SIDE, MOST_CLASSES, MOST_TASKS, LONGEST_NAME = 4096, 100_000, 10_000, 200
MOST_PROBED = 1_000_000
MOST_NUMBER = 1_000_000_000
SMALLEST_SPREAD = 1e-6  # of pixels in 0..1: divided by less, they would overflow


class DescriptionError(SoftmaskError):
    """A description that is not valid."""


@dataclass(frozen=True)
class KnownTask:
    """A task that the model has learned, and facts from the end of its training."""

    __pydantic_config__ = {"extra": "forbid"}

    name: str
    classes: tuple[str, ...]
    samples: int
    """Training samples; 0 for a task that was adopted without its data."""
    accuracy: float | None
    """Validation accuracy when it was learned; None for a task that was adopted without labelled data."""
    epochs: int
    seconds: float
    learned: str
    """The time when it was learned, in UTC."""
    free_capacity: float | None
    """One minus the mean importance, afterwards; None for a method without a soft mask."""
    probe: int = 0
    """Number of validation samples that were kept, to measure forgetting later."""
    inputs: str = ""
    """`bytes`, which are normalised, or `floats`, which are used as they are; empty in old folders."""
    number: int | None = None
    """Number of the file with its kept samples; None if it equals the position, from which it differs after a task was
    removed."""

    def __post_init__(self) -> None:
        check_name(self.name, "a task's name")
        check_name(self.learned, "the time of learning")
        for name in self.classes:
            check_name(name, "a class's name")
        if not 2 <= len(self.classes) <= MOST_CLASSES or len(set(self.classes)) != len(self.classes):
            raise ValueError(f"task {self.name!r} needs 2 to {MOST_CLASSES} classes, no two of one name")
        if self.number is not None and not 0 <= self.number < MOST_NUMBER:
            raise ValueError(f"task {self.name!r}: the number of its kept samples is out of range")
        if self.samples < 0 or self.epochs < 0 or not 0 <= self.probe <= MOST_PROBED:
            raise ValueError(f"task {self.name!r}: a count is out of range")
        shares = (self.accuracy or 0, self.free_capacity or 0)
        if not all(0 <= share <= 1 for share in shares) or not math.isfinite(self.seconds):
            raise ValueError(f"task {self.name!r}: its accuracy, free capacity or time is out of range")


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a model except its state. Replacing this file commits a `learn`."""

    __pydantic_config__ = {"extra": "forbid"}

    network: str
    """`alexnet`, `resnet18`, `mlp`, or a custom `module:function`."""
    input_shape: tuple[int, ...]
    width: float = 1.0
    method: str = "spg"
    settings: dict[str, Any] = field(default_factory=dict)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The default optimizer of the folder. Folders of version 0.1 do not name it and use SGD."""
    dropout: bool = True
    """Whether `alexnet` has the paper's dropout, as in folders of version 0.1."""
    pretrained: bool = False
    """Whether the network was pretrained before the first task, so that its features are distilled from the first task
    on."""
    seed: int = 1
    mean: tuple[float, ...] = ()
    """Per channel, for images and other bytes; floats are used as they are."""
    std: tuple[float, ...] = ()
    generation: int = 0
    """The number of the file with the state."""
    tasks: tuple[KnownTask, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.network, "a network's name")
        if not self.input_shape or not all(1 <= side <= LARGEST_SIDE for side in self.input_shape):
            raise ValueError(f"input_shape needs sides of 1 to {LARGEST_SIDE}, not {self.input_shape}")
        if len(self.input_shape) > 4 or not 0 < self.width <= 8 or self.seed < 0 or self.generation < 0:
            raise ValueError("input_shape, width, seed or generation is out of range")
        if len(self.tasks) > MOST_TASKS or len({task.name for task in self.tasks}) != len(self.tasks):
            raise ValueError("too many tasks, or two of one name")
        if len(set(self.numbers)) != len(self.numbers):
            raise ValueError("two tasks have their kept samples in one file")
        if len(self.mean) != len(self.std) or not all(spread >= SMALLEST_SPREAD for spread in self.std):
            raise ValueError("mean and std do not fit each other")
        if (self.mean and len(self.mean) != self.input_shape[0]) or not all(map(math.isfinite, self.mean + self.std)):
            raise ValueError("mean and std do not fit the channels of input_shape")

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(len(task.classes) for task in self.tasks)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the files with kept samples, task by task."""
        return tuple(place if task.number is None else task.number for place, task in enumerate(self.tasks))

    @property
    def normalise(self) -> Normalisation | None:
        return Normalisation(self.mean, self.std) if self.mean else None

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}


def default_normalisation(input_shape: tuple[int, ...]) -> Normalisation | None:
    """For images: the same constants for every task, so that the input distributions of all tasks are similar."""
    if len(input_shape) != 3:
        return None
    return COLOUR if input_shape[0] == 3 else Normalisation((0.5,) * input_shape[0], (0.25,) * input_shape[0])


def new_config(
    *,
    input_shape: Sequence[int],
    width: float,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    **others: Any,
) -> ModelConfig:
    """The description of a model without tasks; `mean` and `std` are those of `default_normalisation` if not given."""
    shape = tuple(int(side) for side in input_shape)
    if (mean is None) != (std is None):
        raise DescriptionError("give mean and std together, one value for each channel")
    mean, std = (mean, std) if mean is not None else default_normalisation(shape) or ((), ())
    try:
        means, deviations = tuple(map(float, mean)), tuple(map(float, std or ()))
        return ModelConfig(input_shape=shape, width=float(width), mean=means, std=deviations, **others)
    except ValueError as error:
        raise DescriptionError(str(error)) from None


def parse_config(text: str, where: str) -> ModelConfig:
    """The description in a file, or one line on why it is not valid."""
    if too_many_brackets(text):
        raise DescriptionError(f"{where}: refused, it has too many lists for a description of its length")
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DescriptionError(f"{where}: not readable as JSON ({str(error)[:100]})") from None
    found = raw.pop("format", None) if isinstance(raw, dict) else None
    if type(found) is not int or found < 1:
        raise DescriptionError(f"{where}: not the description of a softmask model")
    if found > FORMAT:
        raise DescriptionError(f"{where}: format {found}, from a later release; this one reads up to {FORMAT}: update")
    for task in raw["tasks"] if isinstance(raw.get("tasks"), list) else ():
        if isinstance(task, dict) and "room" in task:  # its name in folders of version 0.1
            task["free_capacity"] = task.pop("room")
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
