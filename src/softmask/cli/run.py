"""`softmask run`: one method on one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.cli import options
from softmask.cli.printing import Progress, out, print_json, tell
from softmask.experiments.analyses.accuracy import run_without_id, transfer
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.metrics import FORMULAS, NO_ID, NO_ID_FORMULA
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.data_check import TaskNames, check_policy, check_sequences
from softmask.experiments.runs.dry_run import forecast
from softmask.experiments.runs.run import load, run
from softmask.experiments.runs.store import Listener, Store, StoredRun
from softmask.experiments.sequences import sequence_facts
from softmask.experiments.trackers import check_trackers, tracked
from softmask.learning.device import find_device
from softmask.learning.processes import is_first_process


def run_command(
    method: options.Method,
    sequence: options.Sequence,
    preset: options.Preset = "paper",
    seed: options.Seed = 1,
    tasks: options.Tasks = None,
    data: options.Data = None,
    store: options.StorePath = options.DEFAULT_STORE,
    settings: options.Settings = None,
    change: options.Changes = None,
    network: options.Network = None,
    with_one: Annotated[bool, typer.Option(help="Run ONE first if it is missing; forward transfer needs it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate steps, time, memory and disk.")] = False,
    device: options.Device = "cpu",
    precision: options.Precision = None,
    threads: options.Threads = 1,
    checkpoint_every: options.CheckpointEvery = 1,
    keep: options.Keep = "last",
    changed_data: options.ChangedData = "refuse",
    track: options.Track = None,
    as_json: options.AsJson = False,
) -> None:
    """Learn a sequence of tasks with one method. Run it again to continue after an interruption.

    Example: `softmask run --method spg --sequence D-5 --preset short --with-one`
    """
    options.check_keep(keep)
    options.check_threads(threads)
    check_trackers(track or ())
    changes = options.all_changes(settings, options.with_precision(change, precision, network), method, sequence)
    config = make_config(method, sequence, preset=preset, seed=seed, tasks=tasks, changes=changes)
    if dry_run:
        _estimate(config, data, device, as_json)
        return
    how: dict[str, Any] = {"threads": threads, "device": device, "checkpoint_every": checkpoint_every, "keep": keep}
    how["changed_data"] = check_policy(changed_data)
    run_store = Store(store)
    wanted = [_reference(config), config] if with_one and method != REFERENCE else [config]
    if not is_first_process():  # one of several processes of a shared run
        for each in wanted:
            run(each, run_store, data=data, **how)
        return
    for each in wanted:
        done = perform(each, run_store, data, track=track or (), **how)
    check_sequences(run_store, [config.sequence], TaskNames(data))  # of other methods and seeds in the same store
    _show(done, run_store, as_json)


def perform(config: RunConfig, store: Store, data: Path | None, *, track: Sequence[str] = (), **how: Any) -> StoredRun:
    """Runs under a progress display; trackers get the missing events of a finished run, too."""
    with tracked(config, store, track) as listeners:
        return _perform(config, store, data, listeners, **how)


def _perform(
    config: RunConfig, store: Store, data: Path | None, listeners: Sequence[Listener], **how: Any
) -> StoredRun:
    label = f"{config.method} on {config.sequence}"
    known = store.find(config, stale_too=True)
    started = known.events("started") if known is not None and known.finished else None
    tasks = config.tasks or sequence_facts(config.sequence).tasks
    with Progress(label, tasks, config.training.epochs) as progress:
        done = run(config, store, data=data, watch=progress, listeners=listeners, **how)
    if done.events("started") == started:  # a run on changed data is a new run, with its own `started` event
        tell(f"{label}: already finished, nothing to do")
    return done


def _reference(config: RunConfig) -> RunConfig:
    return config.of_method(REFERENCE)


def _estimate(config: RunConfig, data: Path | None, device: str, as_json: bool) -> None:
    expected = forecast(config, load(config, data).on(find_device(device)))
    if as_json:
        print_json({"id": config.id(), **asdict(expected)})
        return
    out.print(f"{config.method} on {config.sequence} will take about:")
    for line in expected.lines():
        out.print("  " + line)


def _show(done: StoredRun, store: Store, as_json: bool) -> None:
    measures = transfer(done, store.runs())
    blind = run_without_id(done)
    if as_json:
        print_json({"path": str(done.path), "config": done.config.to_dict(), **measures, NO_ID: blind})
        return
    for name, value in measures.items():
        if value is not None:
            out.print(f"{name} {value:6.2f}   {FORMULAS[name]}")
    if blind is not None:
        out.print(f"{NO_ID} {blind:6.2f}   {NO_ID_FORMULA}")
    if measures["BWT"] is not None and measures["FWT"] is None:  # joint training has neither
        tell("FWT needs ONE on the same tasks: add --with-one")
    out.print(f"results: {done.path}")
