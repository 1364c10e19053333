"""A store: one folder for each run, named by its config; and an index, so that a large store is read quickly.

The index is only a cache, and not in the store itself. An entry is valid while the size, time and number of the run's
files are unchanged; otherwise the folder is read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig, read_config
from softmask.experiments.runs.run_writer import Listener, RunWriter
from softmask.experiments.runs.stored_run import StaleDataError, StoredRun, StoreError, Summary, signature
from softmask.experiments.sequences.cache import cache_folder
from softmask.learning.seeds import Seeds
from softmask.storage.lease import Lease
from softmask.storage.reading import MEBIBYTE, parse_json, read_plain

__all__ = ["Listener", "RunWriter", "StaleDataError", "Store", "StoreError", "StoredRun"]

INDEX_FORMAT = 3
MOST_INDEX = 1024 * MEBIBYTE
# A file that was written just now may be written again within the same tick of the clock.
SECONDS_TOO_YOUNG = 2.0
REPLACED = ".replaced"
"""The folder for old runs that were replaced."""


class Store:
    """A folder of runs."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def open(
        self, config: RunConfig, *, checkpoint_every: int = 1, keep: str = "last", listeners: Sequence[Listener] = ()
    ) -> RunWriter:
        """The run's folder, made if it is new, for writing."""
        path = self.root / config.id()
        return RunWriter(path, config, checkpoint_every=checkpoint_every, keep=keep, listeners=listeners)

    def find(self, config: RunConfig, index: Index | None = None, *, stale_too: bool = False) -> StoredRun | None:
        """The run of this config, if it was begun. To look up many runs, pass the store's index."""
        path = self.root / config.id()
        if not os.path.lexists(path / "config.json"):
            return None
        run = (index.find(path) or index.read(path)) if index else StoredRun(path)
        summary = run.known_summary()
        if summary.problem is not None:
            raise StoreError(summary.problem)
        if summary.stale is not None and not stale_too:
            raise StaleDataError(summary.stale)
        if run.config != config:
            raise StoreError(f"{path / 'config.json'} was changed after the run began: delete {path} to run it again")
        return run

    def put_aside(self, run: StoredRun) -> None:
        """Moves a run aside, so that it can be run again. It is kept, but is no longer part of the store."""
        with Lease(run.path):  # nobody writes it
            pass
        for number in range(1, 1000):
            target = self.root / REPLACED / f"{run.path.name}-{number}"
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                os.rename(run.path, target)
                return
        raise StoreError(f"{self.root / REPLACED} holds too many versions of {run.path.name}: delete some")

    def index(self) -> Index:
        """The index of the runs found in this store the last time."""
        return Index(self.root)

    def busy(self, config: RunConfig) -> bool:
        """Whether a live process writes the run of this config."""
        return Lease(self.root / config.id()).held()

    def runs(self) -> Iterator[StoredRun]:
        """Every readable run; `problems()` names the others."""
        return (run for run in self.look() if isinstance(run, StoredRun))

    def problems(self) -> list[str]:
        """The reasons why folders in the store are left out."""
        return [problem for problem in self.look() if isinstance(problem, str)]

    def look(self) -> Iterator[StoredRun | str]:
        """Each folder as a run, or the reason why it is left out. Unchanged folders are not read again."""
        index = self.index()
        for path in self._folders():
            try:
                run = index.find(path) or index.read(path)
            except SoftmaskError as error:
                yield str(error)
                continue
            except OSError as error:
                yield f"{path} cannot be read: {error.strerror or error}"
                continue
            summary = run.known_summary()
            yield summary.problem or summary.stale or self.copied(run) or run
        index.save(of_all=True)

    def copied(self, run: StoredRun) -> str | None:
        """The error for a folder copied under another name, which would count as one more seed."""
        original = self.root / run.config.id()
        if run.path.name == original.name or not (original / "config.json").exists():
            return None
        return f"{run.path} has the config of {original.name}: a copy counts once"

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        return [self.root / name for name in names if name != REPLACED]


class Index:
    """Entries of one store. Damaged, old or missing entries are rebuilt; with concurrent writers the last one wins.
    Many runs differ only in their seeds: the rest of their configs is stored, read and checked once.
    """

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(os.path.abspath(root).encode()).hexdigest()[:16]
        self.path = cache_folder() / "stores" / f"{name}.json"
        self._seedless, self._before = self._load()
        self._configs: dict[str, RunConfig] = {}
        self._now: dict[str, Any] = {}

    def find(self, path: Path) -> StoredRun | None:
        """The run in this folder if it is known and has not changed."""
        entry = self._before.get(path.name)
        try:
            if entry is None or tuple(entry["signature"]) != (found := signature(path)):
                return None
            config = self._config(entry["seedless"]).with_seeds(Seeds(*entry["seeds"]))
            run = StoredRun(path, (config, found, Summary(**entry["summary"])))
        except (KeyError, TypeError, ValueError, SoftmaskError):
            return None  # read again, which says what is wrong
        self._now[path.name] = entry
        return run

    def _config(self, name: str) -> RunConfig:
        """Checked each time, since a method or a sequence may have been removed or renamed."""
        if name not in self._configs:
            self._configs[name] = read_config(self._seedless[name])
        return self._configs[name]

    def read(self, path: Path) -> StoredRun:
        """Adds the run in this folder to the index."""
        before = signature(path)
        run = StoredRun(path)
        summary = run.summary()
        if max(before[1::3]) < (time.time() - SECONDS_TOO_YOUNG) * 1e9:
            seedless = run.config.with_seeds(Seeds())
            self._seedless.setdefault(seedless.id(), seedless.to_dict())
            self._now[path.name] = {
                "signature": before,
                "seedless": seedless.id(),
                "seeds": list(vars(run.config.seeds).values()),
                "summary": dataclasses.asdict(summary),
            }
        return run

    def save(self, *, of_all: bool) -> None:
        """Saves the index, without which only the next start is slower. If all folders were seen, other entries are
        removed."""
        entries = self._now if of_all else {**self._before, **self._now}
        if entries == self._before:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
            used = {entry["seedless"] for entry in entries.values()}
            configs = {name: raw for name, raw in self._seedless.items() if name in used}
            aside.write_text(json.dumps({"format": INDEX_FORMAT, "configs": configs, "runs": entries}))
            os.replace(aside, self.path)

    def _load(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            content = parse_json(read_plain(self.path, MOST_INDEX))
            if content["format"] == INDEX_FORMAT:
                return dict(content["configs"]), dict(content["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {}, {}
