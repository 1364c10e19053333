"""Decoded images, cached as memory-mapped arrays so that the next start is quick.

An entry is a folder with `manifest.json`, `sources.json` (size, time and digest of every file that was read) and one
.npy file for each array. It is built under another name and renamed when it is complete, so that two
processes may build the same entry at once. An invalid entry is rebuilt.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from softmask.errors import DataError
from softmask.storage.arrays import ArrayFolder, open_array

FORMAT = 1
CHUNK = 1 << 20
BUILDING, OLD = ".building", ".old"
SECONDS_UNTIL_ABANDONED = 24 * 3600
ATTEMPTS, SECONDS_BETWEEN_ATTEMPTS = 20, 0.05
Facts = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """An entry, open for reading."""

    arrays: Mapping[str, npt.NDArray[Any]]
    facts: Facts
    """Other facts about the data, in JSON."""


@dataclass(frozen=True)
class Recipe:
    """How an entry is built."""

    name: str
    version: int
    """Version of the code: increase it whenever it would build other arrays from the same files."""
    place: Path
    """The folder or file of the dataset: the same data at another place make another entry."""
    sources: tuple[str, ...]
    """The files that are read."""
    build: Callable[[ArrayFolder], Facts]

    @property
    def key(self) -> str:
        """Names the folder."""
        return f"{self.name}-{hashlib.sha256(os.fsencode(os.path.abspath(self.place))).hexdigest()[:16]}"


@dataclass(frozen=True)
class Fingerprint:
    """Size and time of change of each file, by its path."""

    files: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, paths: Iterable[Path | str]) -> Fingerprint:
        found = {}
        for path in paths:
            try:
                facts = os.stat(path)
            except OSError as error:
                raise DataError(f"{path}: {error.strerror or error}") from None
            found[str(path)] = (facts.st_size, facts.st_mtime_ns)
        return cls(found)

    def digest(self) -> str:
        """A short name for the whole, so that a hundred thousand files are compared by one line."""
        text = json.dumps(sorted((path, *facts) for path, facts in self.files.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def with_contents(self) -> dict[str, list[Any]]:
        """Size, time and digest of the content of each file."""
        return {path: [*facts, content_digest(path)] for path, facts in self.files.items()}

    def has_contents(self, recorded: object) -> bool:
        """Whether the files hold what was recorded by `with_contents`, whatever their times say."""
        if not isinstance(recorded, dict) or recorded.keys() != self.files.keys():
            return False
        for path, (size, changed) in self.files.items():
            then = recorded[path]
            if not isinstance(then, list) or len(then) != 3 or then[0] != size:
                return False
            if then[1] != changed and content_digest(path) != then[2]:
                return False
        return True


def content_digest(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    return digest.hexdigest()


def cache_folder() -> Path:
    """The folder of the entries: SOFTMASK_CACHE, or `softmask` in the user's cache folder."""
    if named := os.environ.get("SOFTMASK_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softmask"


def cached(
    name: str, version: int, place: Path, sources: Iterable[Path | str], build: Callable[[ArrayFolder], Facts]
) -> Stored:
    """The arrays that `build` makes from these files, from the cache or built now."""
    recipe = Recipe(name, version, place, tuple(map(str, sources)), build)
    folder = cache_folder()
    found = Fingerprint.of(recipe.sources)
    known = _open_entry(folder / recipe.key, recipe, found)
    if known is not None:
        return known
    try:
        return _build_and_keep(folder, recipe, found)
    except OSError as error:  # a reader turns what is wrong with a source into a DataError: this is about writing
        warnings.warn(
            f"decoded images are not cached: cannot write to {folder} ({error.strerror or error}); "
            f"set SOFTMASK_CACHE to another folder",
            stacklevel=2,
        )
        return _build_and_forget(recipe)


def _open_entry(entry: Path, recipe: Recipe, sources: Fingerprint) -> Stored | None:
    """The entry if it is complete and was made from these files by this recipe."""
    try:
        manifest = json.loads((entry / "manifest.json").read_bytes())
        if (manifest["format"], manifest["name"], manifest["version"]) != (FORMAT, recipe.name, recipe.version):
            return None
        if manifest["sources"] != sources.digest() and not _same_contents(entry, manifest, sources):
            return None
        return Stored(_open_arrays(entry, manifest["arrays"]), manifest["facts"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError):
        return None


def _same_contents(entry: Path, manifest: dict[str, Any], sources: Fingerprint) -> bool:
    """Copied or touched files have other times but may hold the same."""
    recorded = json.loads((entry / "sources.json").read_bytes())
    if not sources.has_contents(recorded):
        return False
    manifest["sources"] = sources.digest()
    renewed = {path: [*facts, recorded[path][2]] for path, facts in sources.files.items()}
    with contextlib.suppress(OSError):  # one that cannot be written serves all the same: digests decide again next time
        _write_aside(entry / "sources.json", renewed)
        _write_aside(entry / "manifest.json", manifest)
    return True


def _open_arrays(entry: Path, described: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    arrays = {name: open_array(entry / f"{name}.npy") for name in described}
    for name, (shape, dtype) in described.items():
        if list(arrays[name].shape) != shape or arrays[name].dtype.str != dtype:
            raise ValueError(f"{name} is not as the manifest says")
    return arrays


def _build_and_keep(folder: Path, recipe: Recipe, sources: Fingerprint) -> Stored:
    folder.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    made = Path(tempfile.mkdtemp(prefix=recipe.key, suffix=BUILDING, dir=folder))
    try:
        manifest = _build(made, recipe)
        _write_aside(made / "sources.json", sources.with_contents())
        _check_unchanged(recipe, sources)
        _write_aside(made / "manifest.json", {**manifest, "sources": sources.digest()})
        _publish(made, folder / recipe.key)
        return _open_published(folder / recipe.key, manifest)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _open_published(entry: Path, manifest: dict[str, Any]) -> Stored:
    """Another process may be putting its own, equal entry in place of ours just now."""
    for _ in range(ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return Stored(_open_arrays(entry, manifest["arrays"]), manifest["facts"])
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    raise FileNotFoundError(errno.ENOENT, "an entry vanished right after it was made", str(entry))


def _build(folder: Path, recipe: Recipe) -> dict[str, Any]:
    with ArrayFolder(folder) as output:
        facts = recipe.build(output)
    arrays = {name: [[file.rows, *file.row_shape], file.dtype.str] for name, file in output.files.items()}
    return {"format": FORMAT, "name": recipe.name, "version": recipe.version, "arrays": arrays, "facts": facts}


def _build_and_forget(recipe: Recipe) -> Stored:
    """The same from a temporary folder: the arrays stay mapped after their names are gone."""
    try:
        made = Path(tempfile.mkdtemp(prefix="softmask-"))
    except OSError as error:
        raise DataError(f"no space for decoded images: {error}; set SOFTMASK_CACHE to another folder") from None
    try:
        manifest = _build(made, recipe)
        return Stored(_open_arrays(made, manifest["arrays"]), manifest["facts"])
    except OSError as error:
        raise DataError(f"no space for decoded images: {error}; set SOFTMASK_CACHE to another folder") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_unchanged(recipe: Recipe, before: Fingerprint) -> None:
    for path, facts in Fingerprint.of(recipe.sources).files.items():
        if before.files[path] != facts:
            raise DataError(f"{path}: changed while it was read; start again")


def _publish(made: Path, entry: Path) -> None:
    """Gives the finished folder its name. An entry that stands there is stale, or just made by another process."""
    aside = made.with_suffix(OLD)
    try:
        os.rename(entry, aside)
    except FileNotFoundError:
        pass
    else:
        shutil.rmtree(aside, ignore_errors=True)  # processes that have it mapped keep it until they end
    try:
        os.rename(made, entry)
    except OSError:
        if not (entry / "manifest.json").is_file():
            raise
        # Another process was quicker between the two lines above. It read the same files: its entry is as good.


def _remove_abandoned(folder: Path) -> None:
    """Removes leftovers of killed processes."""
    for path in folder.iterdir():
        if path.suffix in (BUILDING, OLD) and time.time() - path.stat().st_mtime > SECONDS_UNTIL_ABANDONED:
            shutil.rmtree(path, ignore_errors=True)


def _write_aside(path: Path, content: Any) -> None:
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
