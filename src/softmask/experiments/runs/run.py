"""The only way from a config to results."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import softmask
from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.store import Listener, RunWriter, Store, StoredRun, StoreError
from softmask.experiments.sequences import load_sequence
from softmask.learning.device import device_facts, exact, find_device, require_begun_here
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.memory_use import forget_peak
from softmask.learning.method import Method
from softmask.learning.method_registry import METHODS
from softmask.learning.protocol import learn_sequence
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.task import Task, TaskSequence
from softmask.storage.state_file import digest_of

Watch = Callable[[Task, Fit], None]
# Too many runs on one GPU, or a GPU that hangs. Older versions of torch know only the first.
GPU_TROUBLE = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))


def run(
    config: RunConfig,
    store: Store,
    *,
    data: Path | None = None,
    threads: int = 1,
    device: str = "cpu",
    checkpoint_every: int = 1,
    keep: str = "last",
    watch: Watch | None = None,
    listeners: Sequence[Listener] = (),
    tests: bool = True,
) -> StoredRun:
    """Runs what is not yet there: continues an interrupted run, returns a finished one at once.

    Results may differ in the last bits between numbers of threads, so the default is one; two runs side by side are
    quicker than one on two threads. Between devices they differ, too: begin and end a run on the same one. Without
    `tests` only validation accuracies are measured: such runs belong in a store of their own.
    """
    known = store.find(config)
    if known is not None:
        tell_if_code_changed(known)
    if known is not None and known.finished and not may_change(config):
        return known
    where = find_device(device)
    try:
        sequence = load(config, data).on(where)
    except SoftmaskError:
        if known is not None and known.finished:
            return known  # the pictures are gone, its results are not
        raise
    if known is not None:
        _require_same_tasks(known, sequence)
        if known.finished:
            return known
        require_begun_here(known.events("started"), where)
    writing = store.open(config, checkpoint_every=checkpoint_every, keep=keep, listeners=listeners)
    with _threads(threads), exact(where), writing as writer:
        if writer.finished():  # by another process, since we looked
            return StoredRun(writer.path)
        forget_peak()
        told = {**circumstances(), **device_facts(where), **code_facts(config.method)}
        writer.event("started", stages_done=writer.stages_done(), **told)
        try:
            _learn(config, sequence, writer, watch, tests)
        except DivergedError as error:
            writer.event("failed", reason="diverged", message=str(error))
            raise
        except (SoftmaskError, OSError, *GPU_TROUBLE):
            raise  # a full disk, say: nothing is wrong with the run itself
        except Exception as error:
            writer.event("failed", reason="error", message=f"{type(error).__name__}: {error}")
            raise
    return StoredRun(writer.path)


def may_change(config: RunConfig) -> bool:
    """Whether the name of the sequence says where its pictures lie, not which they are."""
    return ":" in config.sequence


def code_facts(method: str) -> dict[str, str]:
    """A digest of the file of a method from elsewhere. For our own, the version of softmask tells the same."""
    module = METHODS.load(method).__module__
    if module.startswith("softmask."):
        return {}
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):  # typed in by hand
        return {}
    return {"code": hashlib.sha256(source.encode()).hexdigest()[:16]}


def tell_if_code_changed(known: StoredRun) -> None:
    method = known.config.method
    now = code_facts(method).get("code")
    if now is not None and any(event.get("code", now) != now for event in known.events("started")):
        warnings.warn(
            f"the code of {method} has changed since some of its runs: what is finished stays as it is, what is not "
            "goes on with the new; delete them, or take another store, or numbers of both will stand together",
            stacklevel=3,
        )


def _require_same_tasks(known: StoredRun, sequence: TaskSequence) -> None:
    """A task's name tells its pictures: what was learned from others is another run."""
    learned = known.events("task")
    count, there = sum(len(event["ids"]) for event in learned), len(sequence.tasks)
    if count > there or (known.finished and count < there):
        raise StoreError(f"{known.path} learned {count} tasks, there are {there} now: use another store, or delete it")
    for event in learned:
        if len(event["ids"]) == 1 and event["name"] != sequence.tasks[event["task"]].name:
            raise StoreError(
                f"{known.path} learned its task {event['task'] + 1} from other pictures than are there now: "
                "use another store, or delete it"
            )


def load(config: RunConfig, data: Path | None) -> TaskSequence:
    """The config's tasks."""
    sequence = load_sequence(config.sequence, data, config.seeds)
    return sequence if config.tasks is None else sequence.first(config.tasks)


def build(config: RunConfig, sequence: TaskSequence) -> Method:
    """The config's method with its initial weights: the same for every method that begins with the same network."""
    scenario = Scenario(sequence.input_shape, sequence.classes, config.network, config.seeds)
    torch.manual_seed(derive(config.seeds.init, "weights"))
    # Drawn on the CPU: these weights do not depend on the device.
    return METHODS.load(config.method)(scenario, config.method_settings()).to(sequence.device)


def circumstances() -> dict[str, Any]:
    """What may be asked for when numbers differ."""
    return {
        "softmask": softmask.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "vectors": torch.backends.cpu.get_cpu_capability(),  # of two processors with other ones the last bits differ
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _learn(config: RunConfig, sequence: TaskSequence, writer: RunWriter, watch: Watch | None, tests: bool) -> None:
    method, measured = build(config, sequence), sequence.tests if tests else None
    learn_sequence(method, sequence.tasks, config.training, writer, tests=measured, watch=watch)
    writer.event("finished", weights=digest_of(method.state_dict()))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads inside, as many as before outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
