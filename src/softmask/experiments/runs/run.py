"""From a config to results: the one function that runs a method on a sequence, and the method after some tasks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from softmask.errors import ConfigError, SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.data_check import (
    ChangedData,
    code_facts,
    network_facts,
    provenance,
    settle,
    warn_if_code_changed,
)
from softmask.experiments.runs.events import digest_of_names
from softmask.experiments.runs.store import Listener, RunWriter, Store, StoredRun
from softmask.experiments.sequences import load_sequence
from softmask.learning.backbones import CHAINS
from softmask.learning.device import (
    device_facts,
    exact,
    find_device,
    parse_device,
    require_begun_here,
    reset_peak_memory,
)
from softmask.learning.fit import DivergedError, Fit
from softmask.learning.method import Method
from softmask.learning.processes import (
    FollowingJournal,
    LeadingJournal,
    Processes,
    device_of_process,
    shared_run,
)
from softmask.learning.protocol import Journal, learn_sequence
from softmask.learning.registry import METHODS
from softmask.learning.scenario import Scenario
from softmask.learning.seeds import derive
from softmask.learning.task import Task, TaskSequence
from softmask.learning.without_id import ClassStatistics, WithoutId
from softmask.storage.lease import Lease
from softmask.storage.state_file import digest_of

Watch = Callable[[Task, Fit], None]
# Too many runs on one GPU, or a GPU that hangs. Older versions of torch know only the first.
GPU_TROUBLE = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))


def run(
    config: RunConfig,
    store: Store,
    *,
    sequence: TaskSequence | None = None,
    data: Path | None = None,
    threads: int = 1,
    device: str = "cpu",
    checkpoint_every: int = 1,
    keep: str = "last",
    watch: Watch | None = None,
    listeners: Sequence[Listener] = (),
    tests: bool = True,
    whole_network: bool = False,
    changed_data: ChangedData = "refuse",
) -> StoredRun:
    """Runs a config: continues an interrupted run, and returns a finished one at once if its data are unchanged.

    The sequence is loaded by its name unless it is given as an object. Results may differ in the last bits between
    numbers of threads, so the default is one; two runs side by side are faster than one on two threads. They also
    differ between devices: begin and end a run on the same one. Without `tests` only validation accuracies are
    measured, and with `whole_network` the network is that of the whole sequence though only its first tasks are learned
    (a search does both): such runs belong in a store of their own.

    Where `torchrun` started several processes, they share the run (`softmask.learning.processes`).
    """
    how: dict[str, Any] = {
        "data": data,
        "threads": threads,
        "device": device_of_process(device),
        "tests": tests,
        "whole_network": whole_network,
    }
    writing: dict[str, Any] = {
        "checkpoint_every": checkpoint_every,
        "keep": keep,
        "watch": watch,
        "listeners": listeners,
        "changed_data": changed_data,
    }
    with shared_run(parse_device(how["device"])) as processes:
        if processes is not None and not processes.first:
            return _follow(config, store, processes, sequence, **how)
        done = _run(config, store, processes, sequence, **how, **writing)
        if processes is not None:
            if not processes.announced:
                processes.share(False)
            processes.share(None)  # the others wait until all is written
        return done


def _follow(
    config: RunConfig,
    store: Store,
    processes: Processes,
    sequence: TaskSequence | None,
    *,
    data: Path | None,
    threads: int,
    device: str,
    tests: bool,
    whole_network: bool,
) -> StoredRun:
    """A process of a shared run that computes its part and writes nothing."""
    if processes.share(None):
        whole = (load_sequence(config.sequence, data, config.seeds) if sequence is None else sequence).on(
            find_device(device)
        )
        tasks = whole.first(config.tasks) if config.tasks is not None else whole
        with _threads(threads), exact(tasks.device):
            method = build(config, whole if whole_network else tasks)
            learn_sequence(method, tasks.tasks, config.training, FollowingJournal(processes), tests=None)
    processes.share(None)
    done = store.find(config, stale_too=True)
    if done is None:
        raise SoftmaskError(
            f"process {processes.rank} does not see {store.root}: the store must be shared by all nodes"
        )
    return done


def _run(
    config: RunConfig,
    store: Store,
    processes: Processes | None,
    sequence: TaskSequence | None,
    *,
    data: Path | None,
    threads: int,
    device: str,
    checkpoint_every: int,
    keep: str,
    watch: Watch | None,
    listeners: Sequence[Listener],
    tests: bool,
    whole_network: bool,
    changed_data: ChangedData,
) -> StoredRun:
    known = store.find(config, stale_too=True)
    if known is not None:
        warn_if_code_changed(known)
    try:
        whole = load_sequence(config.sequence, data, config.seeds) if sequence is None else sequence
    except SoftmaskError:
        if known is None or not known.finished:
            raise
        known.require_results()
        return known  # the images are gone, its results are not
    tasks = whole.first(config.tasks) if config.tasks is not None else whole
    names = [task.name for task in tasks.tasks]
    if known is not None:
        known = settle(known, names, store, changed_data)
    if known is not None and known.finished:
        release_dead_lease(known)
        return known
    where = find_device(device)
    if config.training.precision == "bf16" and where.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        warnings.warn("this processor has no bfloat16 instructions: bf16 is many times slower than fp32", stacklevel=2)
    if known is not None:
        require_begun_here(known.events("started"), where, 1 if processes is None else processes.count)
    whole, tasks = whole.on(where), tasks.on(where)
    if config.network.name not in CHAINS:
        build(config, whole if whole_network else tasks)  # raises errors before anything is written
    writing = store.open(config, checkpoint_every=checkpoint_every, keep=keep, listeners=listeners)
    with _threads(threads), exact(where), writing as writer:
        if writer.finished():  # by another process, since we looked
            return StoredRun(writer.path)
        reset_peak_memory()
        code = code_facts(config.method) | network_facts(config.network.name)
        facts = {**provenance(), **device_facts(where), **code, "data": digest_of_names(names)}
        if processes is not None:
            facts["processes"] = processes.count
            processes.announced = True
            processes.share(True)
        writer.event("started", stages_done=writer.stages_done(), **facts)
        try:
            method = build(config, whole if whole_network else tasks)
            _learn(config, method, tasks, writer, processes, watch, tests)
        except DivergedError as error:
            writer.event("failed", reason="diverged", message=str(error))
            raise
        except (SoftmaskError, OSError, *GPU_TROUBLE):
            raise  # a full disk, say: nothing is wrong with the run itself
        except Exception as error:
            writer.event("failed", reason="error", message=f"{type(error).__name__}: {error}")
            raise
    return StoredRun(writer.path)


def release_dead_lease(known: StoredRun) -> None:
    """Cleans up after a kill just after the last event, which leaves the lease of a dead process in a finished run."""
    if (known.path / "lease.json").exists():
        with suppress(SoftmaskError, OSError), Lease(known.path):
            pass


def load(config: RunConfig, data: Path | None) -> TaskSequence:
    """The config's tasks."""
    sequence = load_sequence(config.sequence, data, config.seeds)
    return sequence if config.tasks is None else sequence.first(config.tasks)


def build(config: RunConfig, sequence: TaskSequence) -> Method:
    """The config's method with its initial weights: the same for every method that begins with the same network."""
    scenario = Scenario(sequence.input_shape, sequence.classes, config.network, config.seeds)
    torch.manual_seed(derive(config.seeds.init, "weights"))
    with warnings.catch_warnings():
        # Of batch normalisation: `settle_statistics` keeps them.
        warnings.filterwarnings("ignore", message="running statistics")
        # Drawn on the CPU: these weights do not depend on the device.
        return METHODS.load(config.method)(scenario, config.method_settings()).to(sequence.device)


def _learn(
    config: RunConfig,
    method: Method,
    tasks: TaskSequence,
    writer: RunWriter,
    processes: Processes | None,
    watch: Watch | None,
    tests: bool,
) -> None:
    journal: Journal = writer if processes is None else LeadingJournal(writer, processes)
    measured, without_id = (tasks.tests, _without_id(tasks, writer)) if tests else (None, None)
    learn_sequence(method, tasks.tasks, config.training, journal, tests=measured, watch=watch, without_id=without_id)
    writer.event("finished", weights=digest_of(method.state_dict()))


def _without_id(tasks: TaskSequence, writer: RunWriter) -> WithoutId | None:
    """None for a run whose first tasks were learned by an earlier release: their images are not read again."""
    statistics = None
    if writer.stages_done():
        state = writer.load_statistics()
        if state is None:
            return None
        statistics = ClassStatistics.from_state(state, tasks.device)
    return WithoutId(
        same_classes=tasks.similar and len(set(tasks.classes)) == 1,
        tasks=len(tasks.tasks),
        statistics=statistics,
        save=writer.save_statistics,
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of threads, and restores it afterwards."""
    cores = os.cpu_count() or 1
    if not 1 <= count <= cores:
        raise ConfigError(f"threads must be in 1..{cores}, the cores of this machine, not {count}")
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_from_checkpoint(run: StoredRun, learned: int, data: Path | None) -> tuple[Method, TaskSequence]:
    """The method after `learned` tasks, in eval mode, and its sequence. 0: the initial weights."""
    sequence = load(run.config, data)
    method = build(run.config, sequence)
    if learned:
        require_checkpoint(run, learned)
        method.load_state_dict(run.checkpoint(learned - 1))
    return method.eval(), sequence


def require_checkpoint(run: StoredRun, learned: int) -> None:
    if not (run.path / "checkpoints" / f"{learned - 1:03}.safetensors").exists():
        raise SoftmaskError(
            f"{run.path} has no checkpoint of task {learned}: run it with `--keep all` into another `--store`"
        )
