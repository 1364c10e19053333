"""Sequences of tasks: their registry, facts and data sources. One file for each family of data, found by name."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from softmask.errors import ConfigError, DataError, SoftmaskError, UnknownName
from softmask.experiments.sequences.own import sequence_from
from softmask.experiments.sequences.streams import (
    sequence_from_avalanche,
    sequence_from_datasets,
    sequence_from_table,
)
from softmask.learning.registry import Entry, Registry
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence

__all__ = [
    "SEQUENCES",
    "Download",
    "SequenceFacts",
    "Source",
    "load_sequence",
    "sequence",
    "sequence_facts",
    "sequence_from",
    "sequence_from_avalanche",
    "sequence_from_datasets",
    "sequence_from_table",
]


@dataclass(frozen=True)
class Download:
    """A file that may be downloaded without registration."""

    address: str
    file: str
    """Its name in the data folder."""
    md5: str
    size: int


@dataclass(frozen=True)
class Source:
    """One dataset, which may serve several sequences."""

    data: str
    """The files that are expected in the data folder."""
    home: str = ""
    terms: str = ""
    obtain: str = ""
    """How to obtain the data if no file can be downloaded."""
    download: Download | None = None
    locate: Callable[[Path, int], Path] | None = None
    """Finds the data for this number of tasks below a data folder, or raises DataError."""

    def not_in(self, root: Path, what: str) -> DataError:
        """The error for data that were not found."""
        return DataError(f"no {what} in {root}: expected {self.data} there ({self.home})")

    def missing(self, sequence: str) -> DataError:
        """The error for a data folder that was not given."""
        how = f"`softmask data fetch {sequence} --data DIR` gets it" if self.download else self.obtain
        message = f"{sequence} needs {self.data}: pass the folder that holds it with --data or set SOFTMASK_DATA"
        return DataError(f"{message}; {how}" if how else message)


@dataclass(frozen=True, kw_only=True)
class SequenceFacts:
    """Facts about a sequence that are known before any data file is opened."""

    tasks: int
    classes: int
    """Classes of each task; where tasks differ, of the largest."""
    description: str
    similar: bool = False
    """Whether the tasks are similar, such as the same classes of different people."""
    source: Source | None = None
    """Where its data come from; None where the images come with an installed package."""
    width: float = 1.0
    """Width of the network as a share of the paper's."""
    drop1: float = 0.2
    drop2: float = 0.5
    norm: Literal["batch"] | None = None
    """Normalisation of the network."""

    @property
    def needs_data(self) -> bool:
        return self.source is not None

    @property
    def data(self) -> str:
        """The files that are expected in the data folder."""
        return self.source.data if self.source else ""


class SequenceMaker(Protocol):
    """The signature of a registered function."""

    def __call__(self, root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence: ...


Maker = TypeVar("Maker", bound=SequenceMaker)
Loader = Callable[[Path | None, Seeds], TaskSequence]
Kind = Callable[[str], tuple[SequenceFacts, Loader]]
"""Facts and loader of the sequence that stands behind the colon of its name."""


class SequenceRegistry(Registry[Loader]):
    """Names, and kinds of names: `folder:PATH` is one kind, with a sequence for every folder."""

    def __init__(self) -> None:
        super().__init__("sequence", "softmask.experiments.sequences", group="softmask.sequences")
        self._kinds: dict[str, Kind] = {}

    def register_kind(self, prefix: str) -> Callable[[Kind], Kind]:
        """Decorator that registers all names that begin with the prefix and a colon."""

        def remember(kind: Kind) -> Kind:
            self._kinds[prefix] = kind
            return kind

        return remember

    def spelt(self, name: str) -> str:
        """A name in one spelling: `folder:pets/` is `folder:pets`. A relative path stays so, as the store may move."""
        prefix, colon, rest = name.partition(":")
        self.names()
        if not colon or prefix not in self._kinds:
            return name
        if not rest.strip():
            raise ConfigError(f"{prefix}:PATH needs a path")
        return f"{prefix}:{os.path.normpath(rest)}"

    def entry(self, name: str) -> Entry[Loader]:
        known = self.names()
        prefix, colon, rest = name.partition(":")
        if colon and prefix in self._kinds:
            facts, load = self._kinds[prefix](rest)
            return Entry(name, load, {"facts": facts})
        if name not in known:
            names = [*known, *(f"{prefix}:PATH" for prefix in self._kinds)]
            raise UnknownName(self.kind, name, names, hint="; `softmask list sequences` says what they are")
        return super().entry(name)


SEQUENCES = SequenceRegistry()


def sequence(
    name: str,
    *,
    tasks: int,
    classes: int,
    description: str,
    similar: bool = False,
    source: Source | None = None,
    width: float = 1.0,
    drop1: float = 0.2,
    drop2: float = 0.5,
    norm: Literal["batch"] | None = None,
) -> Callable[[Maker], Maker]:
    """Decorator that registers the function under this name with this number of tasks. May be stacked."""
    facts = SequenceFacts(
        tasks=tasks,
        classes=classes,
        description=description,
        similar=similar,
        source=source,
        width=width,
        drop1=drop1,
        drop2=drop2,
        norm=norm,
    )

    def remember(make: Maker) -> Maker:
        @functools.wraps(make)
        def load(root: Path | None, seeds: Seeds) -> TaskSequence:
            if source is not None and root is None:
                raise source.missing(name)
            return make(root, seeds, tasks)

        SEQUENCES.register(name, facts=facts)(load)
        return make

    return remember


def sequence_facts(name: str) -> SequenceFacts:
    """The facts of the sequence with this name; opens no data file."""
    facts: SequenceFacts = SEQUENCES.entry(name).facts["facts"]
    return facts


def load_sequence(name: str, root: Path | None, seeds: Seeds) -> TaskSequence:
    """The sequence with this name, its data read from `root` if it needs any."""
    entry = SEQUENCES.entry(name)
    made, facts = entry.thing(root, seeds), entry.facts["facts"]
    if (made.name, len(made.tasks), max(made.classes)) != (name, facts.tasks, facts.classes):
        raise SoftmaskError(
            f"{name} is registered with {facts.tasks} tasks of up to {facts.classes} classes, but its function "
            f"returned {made.name!r} with {len(made.tasks)} of up to {max(made.classes)}"
        )
    return made
