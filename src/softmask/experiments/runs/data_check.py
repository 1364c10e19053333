"""Whether stored results belong to the current data and code, and their provenance.

A task's name holds a digest of its samples. A run whose data have changed is marked in its events: it is left out of
all tables until it is run again or accepted, or until the old data are back. Versions, machine, commit and the code of
a method of another package are recorded at every start.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

import softmask
from softmask.errors import ConfigError, SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.events import digest_of_names
from softmask.experiments.runs.store import StaleDataError, Store, StoredRun, StoreError
from softmask.experiments.sequences import load_sequence
from softmask.learning.backbones import code_digest, is_trusted
from softmask.learning.registry import METHODS
from softmask.learning.seeds import Seeds

ChangedData = Literal["refuse", "rerun", "accept"]
POLICIES: tuple[ChangedData, ...] = ("refuse", "rerun", "accept")


class TaskNames:
    """The current names of a config's tasks. Many runs share their tasks: each sequence is loaded once."""

    def __init__(self, data: Path | None) -> None:
        self.data = data
        self._known: dict[tuple[str, Seeds], tuple[str, ...] | None] = {}

    def of(self, config: RunConfig) -> tuple[str, ...] | None:
        """None if the data are missing: then nothing can be compared."""
        key = config.sequence, config.seeds
        if key not in self._known:
            self._known[key] = None
            with suppress(SoftmaskError):
                tasks = load_sequence(config.sequence, self.data, config.seeds).tasks
                self._known[key] = tuple(task.name for task in tasks)
        names = self._known[key]
        return None if names is None else names[: config.tasks]


def check_policy(policy: str) -> ChangedData:
    for known in POLICIES:
        if policy == known:
            return known
    raise ConfigError(f"changed data: one of {', '.join(POLICIES)}, not {policy!r}")


def difference(known: StoredRun, names: Sequence[str]) -> str | None:
    """How the tasks of a run differ from the current ones."""
    summary, now, there = known.known_summary(), digest_of_names(names), len(names)
    if now in (summary.data, summary.accepted):
        return None
    learned = known.events("task")
    count = sum(len(event["ids"]) for event in learned)
    if count > there or (known.finished and count < there):
        return f"learned {count} tasks, there are {there} now"
    for event in learned:
        if len(event["ids"]) == 1 and (event["task"] >= there or event["name"] != names[event["task"]]):
            return f"learned its task {event['task'] + 1} from other images than are there now"
    return None if summary.data is None else "learned from other images than are there now"


def settle(known: StoredRun, names: Sequence[str], store: Store, policy: ChangedData = "refuse") -> StoredRun | None:
    """The run if its data are unchanged or were accepted; None if it must be run again. Raises StaleDataError if the
    data differ and the policy is to refuse.
    """
    reason, now = difference(known, names), digest_of_names(names)
    if reason is None:
        if known.known_summary().stale is None:
            return known
        mark(store, known, match=True, now=now)
        return StoredRun(known.path)
    if policy == "rerun":
        store.put_aside(known)
        return None
    if policy == "accept" and known.finished:
        mark(store, known, match=True, now=now)
        return StoredRun(known.path)
    if not known.finished:
        raise StoreError(f"{known.path} {reason}: `--changed-data rerun` begins it again")
    if known.known_summary().stale is None:
        with suppress(SoftmaskError):  # a store that we may only read
            mark(store, known, match=False, now=now, reason=reason)
    raise StaleDataError(
        f"{known.path} {reason}: it is left out of tables; `--changed-data rerun` runs it again, `accept` keeps its "
        "results"
    )


def mark(store: Store, known: StoredRun, **facts: object) -> None:
    with store.open(known.config) as writer:
        writer.event("data", **facts)


def check_sequences(store: Store, sequences: Iterable[str], names: TaskNames) -> None:
    """Compares every finished run of these sequences, so that old and new results do not end in one row."""
    wanted = set(sequences)
    for run in list(store.runs()):
        if run.config.sequence in wanted and run.known_summary().status == "finished":
            there = names.of(run.config)
            if there is not None:
                try:
                    settle(run, there, store)
                except SoftmaskError as error:
                    warnings.warn(str(error), stacklevel=2)


SECONDS_FOR_GIT = 10.0


def provenance() -> dict[str, Any]:
    """The facts that may explain why results differ."""
    return {
        "softmask": softmask.__version__,
        **commit_facts(Path(softmask.__file__)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),  # of two processors with other ones the last bits differ
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


@functools.cache
def commit_facts(file: Path) -> dict[str, Any]:
    """The commit of a source tree and whether it was changed since. Nothing for an installed package."""
    folder = file.resolve().parent
    # An environment inside another repository is not part of it: the file itself must be in the commit.
    if _git(folder, "ls-files", "--error-unmatch", file.name) is None:
        return {}
    head, changed = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain", "--", ".")
    return {} if head is None else {"commit": head, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_FOR_GIT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_facts(method: str) -> dict[str, str]:
    """A digest of the file of another package's method. For our own, version and commit are enough."""
    module = METHODS.load(method).__module__
    if module.startswith("softmask."):
        return {}
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed in by hand
        return {}
    return {"code": hashlib.sha256(source.encode()).hexdigest()[:16]}


def network_facts(network: str) -> dict[str, str]:
    """The same for a network that is a user's function."""
    digest = code_digest(network)
    return {} if digest is None else {"network_code": digest}


def warn_if_code_changed(known: StoredRun) -> None:
    method, network = known.config.method, known.config.network.name
    now = code_facts(method) | (network_facts(network) if is_trusted(network) else {})
    for fact, whose in (("code", method), ("network_code", network)):
        if any(event.get(fact, now.get(fact)) != now.get(fact, event.get(fact)) for event in known.events("started")):
            warnings.warn(
                f"the code of {whose} has changed since some of its runs: finished runs stay as they are, the others "
                "continue with the new code; delete them, or use another store, to keep old and new results apart",
                stacklevel=3,
            )
