"""What was found in the folders of a store, kept from one time to the next. Only a cache, and not in the store itself.

An entry counts as long as the run's files have the size, time and number that they had; else the folder is read again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.stored_run import StoredRun, Summary, signature
from softmask.experiments.sequences.cache import cache_folder
from softmask.learning.seeds import Seeds

FORMAT = 2
# A file that was written just now may be written again within the same tick of the clock.
SECONDS_TOO_YOUNG = 2.0


class Index:
    """Entries of one store. Damaged, old or missing ones are made anew; whoever saves last is right, too.

    Many runs differ in their seeds alone: their configs are kept, read and checked once, as ways to run.
    """

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(os.path.abspath(root).encode()).hexdigest()[:16]
        self.path = cache_folder() / "stores" / f"{name}.json"
        self._ways, self._before = self._load()
        self._configs: dict[str, RunConfig] = {}
        self._now: dict[str, Any] = {}

    def find(self, path: Path) -> StoredRun | None:
        """The run in this folder if it is known and has not changed."""
        entry = self._before.get(path.name)
        try:
            if entry is None or tuple(entry["signature"]) != (found := signature(path)):
                return None
            config = self._config(entry["way"]).with_seeds(Seeds(*entry["seeds"]))
            run = StoredRun(path, (config, found, Summary(**entry["summary"])))
        except (KeyError, TypeError, ValueError, SoftmaskError):
            return None  # read anew, which says what is wrong
        self._now[path.name] = entry
        return run

    def _config(self, way: str) -> RunConfig:
        """Checked again each time: a method or a sequence may have been removed or renamed since."""
        if way not in self._configs:
            self._configs[way] = RunConfig.from_dict(self._ways[way])
        return self._configs[way]

    def read(self, path: Path) -> StoredRun:
        """The run in this folder, to be known the next time."""
        before = signature(path)
        run = StoredRun(path)
        summary = run.summary()
        if max(before[1::3]) < (time.time() - SECONDS_TOO_YOUNG) * 1e9:
            way = run.config.with_seeds(Seeds())
            self._ways.setdefault(way.id(), way.to_dict())
            self._now[path.name] = {
                "signature": before,
                "way": way.id(),
                "seeds": list(vars(run.config.seeds).values()),
                "summary": dataclasses.asdict(summary),
            }
        return run

    def save(self, *, of_all: bool) -> None:
        """Without it the next time takes longer, and that is all. If all folders were seen, others are forgotten."""
        entries = self._now if of_all else {**self._before, **self._now}
        if entries == self._before:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
            used = {entry["way"] for entry in entries.values()}
            ways = {name: raw for name, raw in self._ways.items() if name in used}
            aside.write_text(json.dumps({"format": FORMAT, "ways": ways, "runs": entries}))
            os.replace(aside, self.path)

    def _load(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            content = json.loads(self.path.read_text())
            if content["format"] == FORMAT:
                return dict(content["ways"]), dict(content["runs"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {}, {}
