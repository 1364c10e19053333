"""Optuna's study of a search, in a journal file or a database, and its trials as plain records."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.pruners import MedianPruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.trial import FrozenTrial, Trial, TrialState

from softmask.errors import SoftmaskError
from softmask.experiments.runs.search_space import Range
from softmask.storage.reading import parse_json

Ended = Literal["complete", "pruned", "failed", "running"]
STATES: dict[TrialState, Ended] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
}
# A trial is pruned if it is below the median of earlier trials, once there are this many. The first task alone shows no
# forgetting.
TRIALS_TO_COMPARE_WITH = 5
TASKS_BEFORE_PRUNING = 2
WORKER = b',"worker_id":"'
FIRST_OPERATION = b'{"op_code":0' + WORKER
"""A journal begins with the operation that creates a study."""
LAST_OPERATION_CODE = 10


class StudyError(SoftmaskError):
    """The study cannot be opened, or was not made for this search."""


@dataclass(frozen=True)
class TrialRecord:
    """One trial, as a plain record."""

    number: int
    """Counted from 1, as it is printed; Optuna counts from 0."""
    state: Ended
    found: dict[str, Any]
    value: float | None
    """Mean validation accuracy over the tasks, in percent; for a pruned trial, over those that it learned."""
    tasks: int
    """The number of tasks after which it was reported."""
    reason: str | None = None
    """The reason why it was pruned or failed."""

    @classmethod
    def of(cls, trial: FrozenTrial) -> TrialRecord:
        value = trial.value if trial.state == TrialState.COMPLETE else trial.user_attrs.get("reached")
        count, reason = len(trial.intermediate_values), trial.user_attrs.get("reason")
        return cls(1 + trial.number, STATES[trial.state], dict(trial.params), value, count, reason)


def open_study(address: str, name: str) -> optuna.Study:
    """A journal file, or a database if the address is a URL. Made if it is new."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = MedianPruner(n_startup_trials=TRIALS_TO_COMPARE_WITH, n_warmup_steps=TASKS_BEFORE_PRUNING - 1)
    try:
        return optuna.create_study(
            storage=_storage(address), study_name=name, direction="maximize", load_if_exists=True, pruner=pruner
        )
    except SoftmaskError:
        raise
    except Exception as error:  # of Optuna, SQLAlchemy or a database driver
        first = without_password(str(error).partition("\n")[0])
        raise StudyError(f"cannot open the study {without_password(address)}: {first}") from None


def without_password(text: str) -> str:
    """For messages: the URL of a database may hold a password."""
    hidden = re.sub(r"(://[^:/?#@\s]*):[^\s]*@", r"\1:***@", text)
    return re.sub(r"(?i)\b(\w*(?:password|passwd|pwd|token)=)[^&\s]*", r"\1***", hidden)


def records(study: optuna.Study) -> list[TrialRecord]:
    """All trials that were begun, in order."""
    return [TrialRecord.of(trial) for trial in study.get_trials(deepcopy=False) if trial.state in STATES]


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
    """A lock for one process at a time; the kernel releases it when the process ends."""
    with open(file, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _storage(address: str) -> BaseStorage:
    if "://" in address:
        return RDBStorage(address)
    path = Path(address)
    _require_journal(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    lock = _KernelLock(path)
    lock.acquire()  # removes the half line that a kill left
    lock.release()
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


def _require_journal(path: Path) -> None:
    """A file that is not recognised as Optuna's journal is never written to."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise StudyError(f"{path} is not a regular file")
        content = path.read_bytes()
    except FileNotFoundError:
        return
    *lines, tail = content.split(b"\n")
    whole = all(map(_is_operation, lines)) and (
        _begins_an_operation(tail) if lines else tail.startswith(FIRST_OPERATION)
    )
    if content and not whole:
        raise StudyError(f"{path} is not a journal of a study: for a database give its URL, as in sqlite:///{path}")


def _is_operation(line: bytes) -> bool:
    try:
        found = parse_json(line)
    except ValueError:
        return False
    code = found.get("op_code") if isinstance(found, dict) else None
    return type(code) is int and 0 <= code <= LAST_OPERATION_CODE and isinstance(found.get("worker_id"), str)


def _begins_an_operation(tail: bytes) -> bool:
    """Whether this may be the beginning of a line of Optuna, left by a kill. Other text belongs to the user."""
    matched = re.fullmatch(rb'\{"op_code":(?:\d{1,2}(,.*)?)?', tail, re.DOTALL)
    if matched is None:
        return b'{"op_code":'.startswith(tail)
    rest = matched[1] or b""
    return rest.startswith(WORKER) or WORKER.startswith(rest)


class _KernelLock(BaseJournalFileLock):
    """Optuna's own lock is a file that a killed process leaves behind; this one goes with the process."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.guard = journal, Path(f"{journal}.lock")
        self._held: int | None = None

    def acquire(self) -> bool:
        held = os.open(self.guard, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(held, fcntl.LOCK_EX)
        self._held = held
        self._remove_incomplete_line()
        return True

    def release(self) -> None:
        assert self._held is not None
        os.close(self._held)
        self._held = None

    def _remove_incomplete_line(self) -> None:
        """Removes an incomplete last line, which a kill leaves behind and to which the next writer would append."""
        with open(self.journal, "r+b") as file:
            if not (size := file.seek(0, os.SEEK_END)):
                return
            file.seek(size - 1)
            if file.read() != b"\n":
                file.seek(0)
                content = file.read()
                whole = content.rfind(b"\n") + 1
                if not _begins_an_operation(content[whole:]):
                    raise StudyError(f"{self.journal} does not end as a journal does: it is left as it is")
                file.truncate(whole)
