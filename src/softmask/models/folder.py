"""The files of a model. A new generation is written beside the last one and then named in a new description.

    config.json                      network, method, tasks, number of the current generation
    generation-000003.safetensors    weights, importance, one head a task
    statistics-000003.safetensors    class means and covariance of the features, to infer the task of an image
    probe-000.safetensors            kept samples of a task with the answers at that time, if asked for
    history.jsonl                    a log for people, one line an event

A folder may be damaged or hostile: links are refused, file names never come from its content, and nothing is read into
memory before its names, shapes and sizes are those of the network in the description.
"""

from __future__ import annotations

import json
import os
import re
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from softmask.errors import SoftmaskError
from softmask.learning.without_id import ClassStatistics
from softmask.models.description import DescriptionError, ModelConfig, parse_config
from softmask.storage.lease import opened_if_plain
from softmask.storage.state_file import StateFileError, read_state, write_json, write_state

LARGEST_CONFIG = 64_000_000
ROOM_FOR_HEADER = 16_000_000
START_OF_HISTORY = 100_000
OURS = re.compile(
    r"((generation|statistics)-\d{6,}|probe-\d{3,})\.safetensors(\.tmp)?|config\.json\.tmp|lease\.json\.tmp"
)
LEASE = ("lease.json", "lease.lock")
DTYPES = {"F32": "torch.float32", "F64": "torch.float64", "F16": "torch.float16", "BF16": "torch.bfloat16"}
DTYPES |= {"I64": "torch.int64", "I32": "torch.int32", "I16": "torch.int16", "I8": "torch.int8", "U8": "torch.uint8"}
DTYPES |= {"BOOL": "torch.bool", "C64": "torch.complex64", "U16": "torch.uint16", "U32": "torch.uint32"}


class ModelFolderError(SoftmaskError):
    """The folder is not a model, or is damaged."""


class ModelFolder:
    """Reads and replaces the files of one model. The caller does the locking."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    def generation(self, number: int) -> Path:
        return self.path / f"generation-{number:06d}.safetensors"

    def statistics(self, number: int) -> Path:
        return self.path / f"statistics-{number:06d}.safetensors"

    def probe(self, number: int) -> Path:
        return self.path / f"probe-{number:03d}.safetensors"

    def exists(self) -> bool:
        return (self.path / "config.json").exists()

    def prepare(self) -> None:
        """Makes an empty folder for a new model; leftovers of a killed process are removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.exists():
            raise ModelFolderError(f"{self.path} holds a model already: open it, or take another folder")
        foreign = [name for name in os.listdir(self.path) if not OURS.fullmatch(name) and name not in LEASE]
        if foreign:
            raise ModelFolderError(f"{self.path} is not empty (it holds {foreign[0]!r}): take a folder of its own")

    def read_config(self) -> ModelConfig:
        if not self.path.is_dir():
            raise ModelFolderError(f"{self.path}: no such model; `softmask learn {self.path} IMAGES` makes one")
        file = self.path / "config.json"
        if not self.exists():
            raise ModelFolderError(f"{self.path} is not a model: it has no config.json")
        size = require_plain(file)
        if size > LARGEST_CONFIG:
            raise ModelFolderError(f"{file}: {size} bytes are too many for a description")
        try:
            return parse_config(file.read_text(encoding="utf-8"), str(file))
        except (DescriptionError, UnicodeDecodeError) as error:
            raise ModelFolderError(
                str(error) if isinstance(error, DescriptionError) else f"{file}: not UTF-8 text"
            ) from None

    def read_generation(self, number: int, expected: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a generation, which must have exactly the names, shapes and types of `expected`."""
        file = self.generation(number)
        state = read_checked(file, expected)
        meant = dict(leaves(expected))
        for place, tensor in leaves(state):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                if not _as_finite_as(tensor, meant[place]):
                    raise ModelFolderError(f"{file}: {place} holds values that are not finite")
                if "/importance/" in place and not ((tensor >= 0) & (tensor <= 1)).all():
                    raise ModelFolderError(f"{file}: {place} must be in 0..1")
        return state

    def read_statistics(self, number: int, expected: Mapping[str, Any]) -> dict[str, Any] | None:
        """The class statistics of a generation; None in the folder of an earlier release."""
        file = self.statistics(number)
        if not os.path.lexists(file):
            return None
        state = read_checked(file, expected)
        finite = all(tensor.isfinite().all() for tensor in state.values())
        if not finite or not state["known"].all() or state["tasks"].tolist() != list(range(len(state["tasks"]))):
            raise ModelFolderError(f"{file}: its values are not those of class statistics")
        return state

    def commit(
        self,
        config: ModelConfig,
        state: Mapping[str, Any],
        event: Mapping[str, Any],
        expected: Mapping[str, Any],
        statistics: ClassStatistics | None = None,
    ) -> None:
        """Atomic: the model is the old one until config.json is replaced, and the new one afterwards. The generation is
        read back and compared with `expected` before it is committed, while the old generation still exists.
        """
        file = self.generation(config.generation)
        try:
            parse_config(json.dumps(config.to_dict()), "its new description")
            if statistics is not None:
                write_state(self.statistics(config.generation), statistics.state_dict())
            write_state(file, dict(state))
            self.read_generation(config.generation, expected)
        except (DescriptionError, ModelFolderError) as error:
            for left in (file, self.statistics(config.generation)):
                left.unlink(missing_ok=True)
            raise ModelFolderError(f"{self.path} is as it was, since it could not be opened again: {error}") from None
        write_json(self.path / "config.json", config.to_dict())
        try:
            self.note(event)
            self.tidy(config)
        except (OSError, SoftmaskError) as error:  # the model itself is safe by now
            warnings.warn(f"{self.path} is saved, but not tidied up: {error}", stacklevel=2)

    def describe(self, config: ModelConfig, event: Mapping[str, Any]) -> None:
        """Atomically writes another description of the same generation."""
        try:
            parse_config(json.dumps(config.to_dict()), "its new description")
        except DescriptionError as error:
            raise ModelFolderError(f"{self.path} is as it was: {error}") from None
        write_json(self.path / "config.json", config.to_dict())
        self.note(event)

    def note(self, event: Mapping[str, Any]) -> None:
        """Appends to the log, on which the model does not depend."""
        with open(opened_if_plain(self.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            file.write((json.dumps(event) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def has_noted(self, kind: str) -> bool:
        """Whether the beginning of the history has such an event."""
        with suppress(OSError, SoftmaskError), open(opened_if_plain(self.history, os.O_RDONLY), "rb") as file:
            return json.dumps({"kind": kind}).encode() in file.read(START_OF_HISTORY)
        return False

    def tidy(self, config: ModelConfig) -> None:
        """Removes earlier generations and leftovers of killed processes. The caller must hold the lease."""
        now = {file(config.generation).name for file in (self.generation, self.statistics)}
        wanted = {*now, *(self.probe(i).name for i in config.numbers)}
        for name in os.listdir(self.path):
            if OURS.fullmatch(name) and name not in wanted:
                try:
                    (self.path / name).unlink(missing_ok=True)
                except OSError as error:
                    raise ModelFolderError(f"{self.path / name} is in the way: {error.strerror}") from None

    def remove(self) -> None:
        """Removes a model without tasks: all its files, and the folder if nothing else is in it."""
        for name in os.listdir(self.path):
            if OURS.fullmatch(name) or name in (*LEASE, "config.json", self.history.name):
                (self.path / name).unlink(missing_ok=True)
        with suppress(OSError):
            self.path.rmdir()

    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(self.path) if not entry.is_dir())


def require_plain(file: Path) -> int:
    """The size of a file that is neither a link nor a device."""
    try:
        facts = os.lstat(file)
    except FileNotFoundError:
        raise ModelFolderError(f"{file} is missing: the model is incomplete") from None
    if not stat.S_ISREG(facts.st_mode):
        raise ModelFolderError(f"{file}: refused, it is not a plain file")
    return facts.st_size


def leaves(state: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in nested dictionaries by the name that it has in a state file."""
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from leaves(value, f"{place}/{key}" if place else str(key))
    else:
        yield place, state


def read_checked(file: Path, expected: Mapping[str, Any]) -> dict[str, Any]:
    """A state that must look like `expected`; header and size are compared before any tensor is read."""
    wanted = dict(leaves(expected))
    shapes = {name: (tuple(t.shape), str(t.dtype)) for name, t in wanted.items() if isinstance(t, Tensor)}
    size, needed = require_plain(file), sum(t.nbytes for t in wanted.values() if isinstance(t, Tensor))
    if size > needed + ROOM_FOR_HEADER:
        raise ModelFolderError(f"{file}: {size} bytes, but the network has {needed}: refused")
    _require_memory(file, needed)
    _compare(file, shapes, _header(file))
    try:
        state = read_state(file)
    except StateFileError as error:
        raise ModelFolderError(str(error)) from None
    if not _nested_alike(state, expected):
        raise ModelFolderError(f"{file}: it is not built as the model's state is")
    found = dict(leaves(state))
    _compare(file, shapes, {n: (tuple(t.shape), str(t.dtype)) for n, t in found.items() if isinstance(t, Tensor)})
    for name, value in wanted.items():
        if not isinstance(value, Tensor) and not _same(name, found.get(name, value), value):
            raise ModelFolderError(f"{file}: {name} is {found[name]!r}, not {value!r}")
    return dict(state)


def _same(place: str, found: Any, wanted: Any) -> bool:
    """A custom network may have extra state that changes as it learns; all else follows from the description."""
    return type(found) is type(wanted) if place.startswith("backbone.") else bool(found == wanted)


def _nested_alike(found: Any, wanted: Any) -> bool:
    """Whether two dictionaries have the same nested structure and names."""
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping):
        return isinstance(wanted, Mapping) == isinstance(found, Mapping)
    return found.keys() == wanted.keys() and all(_nested_alike(found[key], wanted[key]) for key in wanted)


def _as_finite_as(tensor: Tensor, meant: Tensor) -> bool:
    """Finite, or infinite exactly where a custom network is so from the start, as a causal mask may be."""
    finite = tensor.isfinite()
    if finite.all():
        return True
    return not meant.is_meta and bool((finite == meant.isfinite().to(finite.device)).all())


def _header(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    try:
        with safe_open(file, framework="pt") as opened:
            # In files of version 0.1 every name begins with a slash.
            slices = {n.removeprefix("/"): opened.get_slice(n) for n in opened.keys()}  # noqa: SIM118 (not a dictionary)
            return {n: (tuple(s.get_shape()), DTYPES.get(s.get_dtype(), "?")) for n, s in slices.items()}
    except (OSError, SafetensorError, ValueError) as error:
        raise ModelFolderError(f"{file}: not readable as safetensors ({str(error)[:150]})") from None


def _compare(file: Path, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            shapes = [f"{s[0]} {s[1]}" if s else "nothing" for s in (found.get(name), wanted.get(name))]
            raise ModelFolderError(f"{file}: {name[:100]!r} is {shapes[0]}, the network needs {shapes[1]}")


def _require_memory(file: Path, needed: int) -> None:
    """Guards against descriptions of huge networks: a sparse file costs an attacker nothing."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return
    if needed > there:
        raise ModelFolderError(f"{file}: needs {needed:,} bytes of memory, this machine has {there:,}")
