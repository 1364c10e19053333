"""Optuna's memory of a search: a journal file or a database, and its trials as plain records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial, Trial, TrialState

from softmask.errors import SoftmaskError
from softmask.experiments.runs.search_space import Range

Ended = Literal["complete", "pruned", "failed", "running"]
STATES: dict[TrialState, Ended] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}


class StudyError(SoftmaskError):
    """A study that cannot be opened or that was not made for this search."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial, without Optuna around it."""

    number: int
    """Counted from 1, as it is told; Optuna counts from 0."""
    state: Ended
    found: dict[str, Any]
    value: float | None
    """Mean validation accuracy over the tasks, in percent; of a pruned trial, over those that it learned."""
    tasks: int
    """After how many tasks it was judged."""
    reason: str | None = None
    """Why it was given up."""

    @classmethod
    def of(cls, trial: FrozenTrial) -> TrialRecord:
        reached = trial.intermediate_values
        value = trial.value if trial.state == TrialState.COMPLETE else None
        if value is None and reached:
            value = reached[max(reached)]
        reason = trial.user_attrs.get("reason")
        return cls(1 + trial.number, STATES[trial.state], dict(trial.params), value, len(reached), reason)


def open_study(address: str, name: str) -> optuna.Study:
    """A journal file, or a database if the address is a URL. Made if it is new."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            storage=_storage(address), study_name=name, direction="maximize", load_if_exists=True
        )
    except SoftmaskError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy or a database driver
        raise StudyError(f"cannot open the study {address}: {str(error).splitlines()[0]}") from None


def records(study: optuna.Study) -> list[TrialRecord]:
    """All trials that were begun, in order."""
    return [TrialRecord.of(trial) for trial in study.get_trials(deepcopy=False) if trial.state in STATES]


class EvenStart(optuna.samplers.TPESampler):
    """TPE, with values given for some fields of a trial that it would draw at random."""

    def __init__(self, given: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.given = given

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if param_name in self.given:
            return self.given[param_name]
        return super().sample_independent(study, trial, param_name, param_distribution)


def suggest(trial: Trial, name: str, allowed: Range) -> None:
    """Gives a trial a value from the range, unless it has one."""
    if allowed.choices is not None:
        trial.suggest_categorical(name, allowed.choices)
        return
    assert allowed.low is not None
    assert allowed.high is not None
    if allowed.whole:
        trial.suggest_int(name, int(allowed.low), int(allowed.high), log=allowed.log)
    else:
        trial.suggest_float(name, allowed.low, allowed.high, log=allowed.log)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """One process at a time; the kernel ends it with the process, however that ends."""
    with open(file, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _storage(address: str) -> BaseStorage:
    if "://" in address:
        return RDBStorage(address)
    path = Path(address)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with open(path, "rb") as file:
        begins = file.read(1)
    if begins not in (b"", b"{"):
        raise StudyError(f"{path} is no journal of a study: for a database give its URL, as in sqlite:///{path}")
    lock = _KernelLock(path)
    lock.acquire()  # cuts what a kill left
    lock.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


class _KernelLock(BaseJournalFileLock):
    """Optuna's own lock is a file that a killed process leaves behind; this one goes with the process."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.guard = journal, Path(f"{journal}.lock")
        self._held: int | None = None

    def acquire(self) -> bool:
        held = os.open(self.guard, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(held, fcntl.LOCK_EX)
        self._held = held
        self._cut_torn_line()
        return True

    def release(self) -> None:
        assert self._held is not None
        os.close(self._held)
        self._held = None

    def _cut_torn_line(self) -> None:
        """A kill between two bytes leaves half a line, and whoever writes next would make it a wrong one."""
        with open(self.journal, "r+b") as file:
            if not (size := file.seek(0, os.SEEK_END)):
                return
            file.seek(size - 1)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
