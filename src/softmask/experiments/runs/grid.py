"""Methods x sequences x seeds: the runs of a grid, their states, and running those that are missing."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from softmask.errors import SoftmaskError
from softmask.experiments.executors import WORKER_DIED, Executor, Outcome
from softmask.experiments.paper import paper_tables
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.data_check import ChangedData, TaskNames, settle, warn_if_code_changed
from softmask.experiments.runs.run import release_dead_lease, run
from softmask.experiments.runs.store import Index, Listener, StaleDataError, Store, StoredRun
from softmask.learning.backbones import is_function, require_trusted, trust_network
from softmask.learning.registry import METHODS
from softmask.learning.seeds import Seeds
from softmask.storage.lease import FolderBusyError

PAPER_SEEDS = (1, 2, 3, 4, 5)
SEEDS_SET_BY_HAND = "each of seeds.order, split, init and batches is set, so they would be the same run again"
SECONDS_BETWEEN_LOOKS = 1.0
WORKERS_DIED = "worker died"
State = Literal["finished", "failed", "stale", "running", "begun", "missing"]
Changes = Callable[[str, str], Mapping[str, Any]]
"""The changes for a method on a sequence."""
Listening = Callable[[RunConfig, Store], AbstractContextManager[Sequence[Listener]]]
"""Listeners of a run; must be picklable."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid and its state."""

    config: RunConfig
    state: State
    error: str | None = None
    """The reason of a failure."""
    elsewhere: bool = False
    """Whether another process ran it."""
    known: StoredRun | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Grid:
    """The requested runs, and those that are left out, with reasons."""

    configs: tuple[RunConfig, ...]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        methods: Sequence[str],
        sequences: Sequence[str],
        seeds: Sequence[int],
        *,
        preset: str = "paper",
        tasks: int | None = None,
        changes: Changes | Mapping[str, Any] | None = None,
        named: bool = True,
    ) -> Grid:
        """Every method on every sequence with every seed; seeds vary fastest, so that the rows of a table are complete
        early. Unless methods and sequences were `named` explicitly, runs that the paper leaves out are left out.
        """
        configs: dict[str, RunConfig] = {}
        left_out = {}
        for sequence in dict.fromkeys(sequences):
            for method in dict.fromkeys(methods):
                reason = None if named else not_in_the_paper(method, sequence)
                if reason is not None:
                    left_out[f"{method} on {sequence}"] = reason
                    continue
                changed = changes(method, sequence) if callable(changes) else changes
                seeded = {
                    c.id(): c for c in _seeded(method, sequence, seeds, preset=preset, tasks=tasks, changes=changed)
                }
                configs |= seeded
                if len(seeded) < (wanted := len(set(seeds))):
                    left_out[f"{wanted - len(seeded)} seeds of {method} on {sequence}"] = SEEDS_SET_BY_HAND
        return cls(tuple(configs.values()), left_out)

    def with_reference(self, method: str) -> Grid:
        """The same grid, with a run of this reference method before each run that can be compared with it."""
        configs: dict[str, RunConfig] = {}
        for config in self.configs:
            reference = config if config.method == method else config.of_method(method)
            configs.setdefault(reference.id(), reference)
            configs.setdefault(config.id(), config)
        return replace(self, configs=tuple(configs.values()))

    def cells(self, store: Store) -> list[Cell]:
        """The state of each run."""
        index = store.index()
        found = [look(config, store, index) for config in self.configs]
        index.save(of_all=False)
        return found

    def run(
        self,
        store: Store,
        executor: Executor,
        *,
        data: Path | None = None,
        keep: str = "last",
        checkpoint_every: int = 1,
        device: str = "cpu",
        retry_failed: bool = False,
        listening: Listening | None = None,
        changed_data: ChangedData = "refuse",
    ) -> Iterator[Cell]:
        """Runs the missing cells; yields every cell once, when it has ended, the finished ones first.

        A failed cell is not run again unless `retry_failed` is set or its workers died. A cell that another live
        process is writing is waited for after all others; if that process dies, the cell is run here.
        """
        for config in self.configs:
            require_trusted(config.network.name)
        store = Store(store.root.absolute())  # workers may have another working folder
        how: dict[str, Any] = {
            "store": store,
            "data": data and data.absolute(),
            "keep": keep,
            "checkpoint_every": checkpoint_every,
            "device": device,
            "listening": listening,
            "changed_data": changed_data,
        }
        waiting: dict[str, RunConfig] = {}
        names = TaskNames(data)
        for each in self.cells(store):
            cell = _compared(each, store, names, changed_data)
            if cell.state == "finished" or (cell.state in ("failed", "stale") and not retry_failed):
                if listening is not None and cell.state != "stale":  # a tracker may be new, or have been down before
                    with listening(cell.config, store):
                        pass
                yield cell if cell.state != "stale" else replace(cell, state="failed")
            else:
                waiting[cell.config.id()] = cell.config
        yield from _run_waiting(waiting, store, executor, functools.partial(_run_cell, **how))


def _run_waiting(
    waiting: dict[str, RunConfig], store: Store, executor: Executor, work: Callable[[RunConfig], None]
) -> Iterator[Cell]:
    while waiting:
        free = [config for config in waiting.values() if not _busy(config, store)]
        for outcome in executor.map(work, free):
            if outcome.kind != FolderBusyError.__name__:
                del waiting[outcome.item.id()]
                yield _ended(outcome, store)
        if waiting and not free:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        elsewhere = [cell for cell in (look(config, store) for config in waiting.values()) if _has_ended(cell)]
        for cell in elsewhere:
            del waiting[cell.config.id()]
            yield replace(cell, elsewhere=True)


def _busy(config: RunConfig, store: Store) -> bool:
    """A folder that may not be entered is not busy: running its cell gives the error, and the other cells go on."""
    try:
        return store.busy(config)
    except OSError:
        return False


def _compared(cell: Cell, store: Store, names: TaskNames, policy: ChangedData) -> Cell:
    """A finished run counts only if its data have not changed."""
    if cell.known is None or cell.state not in ("finished", "stale"):
        return cell
    try:
        there = names.of(cell.config)
        if there is None:
            return cell
        settled = settle(cell.known, there, store, policy)
        if settled is None:
            return replace(cell, state="missing", known=None)
        release_dead_lease(settled)
        return replace(cell, state="finished", error=None, known=settled)
    except StaleDataError as error:
        return replace(cell, state="stale", error=str(error))
    except (SoftmaskError, OSError) as error:
        return replace(cell, state="failed", error=str(error))


def _seeded(method: str, sequence: str, seeds: Sequence[int], **options: Any) -> Iterator[RunConfig]:
    """One config per seed, checked once, since only the seeds differ."""
    first, second = (make_config(method, sequence, seed=seed, **options) for seed in (0, 1))
    set_by_hand = {name: seed for name, seed in vars(first.seeds).items() if seed == getattr(second.seeds, name)}
    for seed in dict.fromkeys(seeds):
        yield first.with_seeds(replace(Seeds.all_from(seed), **set_by_hand))


def paper_grid(
    *,
    methods: Sequence[str] | None = None,
    sequences: Sequence[str] | None = None,
    seeds: Sequence[int] = PAPER_SEEDS,
    **options: Any,
) -> Grid:
    """The runs behind the paper's tables: 17 systems and three ablations on nine sequences, five seeds each.

    CAT on I-100 has no number in the paper and is left out unless both are named.
    """
    tables = paper_tables()
    by_title = {METHODS.load(name).title: name for name in METHODS.names()}
    titles = [*tables["accuracy"], *(title for title in tables["ablation_accuracy"] if title not in tables["accuracy"])]
    return Grid.of(
        list(methods or [by_title[title] for title in titles]),
        list(sequences or tables["sequences"]),
        seeds,
        named=bool(methods and sequences),
        **options,
    )


def not_in_the_paper(method: str, sequence: str) -> str | None:
    """Why the paper has no result for a system on one of its sequences; None if it has one, or does not have the system
    or sequence."""
    row = paper_tables()["accuracy"].get(METHODS.load(method).title, {})
    if sequence not in row or row[sequence] is not None:
        return None
    return "N/A in the paper: its training time grows with the square of the number of tasks; name both to run it"


def look(config: RunConfig, store: Store, index: Index | None = None) -> Cell:
    """The state of a run. A damaged or foreign folder is a failed cell and does not stop the grid."""
    try:
        known = store.find(config, index, stale_too=True)
        summary = known.known_summary() if known is not None else None
        if known is not None and summary is not None and summary.status == "finished":
            warn_if_code_changed(known)
            return Cell(config, "stale" if summary.stale else "finished", summary.stale, known=known)
        if store.busy(config):
            return Cell(config, "running")
        if known is None:
            return Cell(config, "missing")
        if known.status == "failed" and (last := known.events("failed")[-1]).get("reason") != WORKERS_DIED:
            return Cell(config, "failed", str(last.get("message")))
        return Cell(config, "begun")
    except SoftmaskError as error:  # a damaged folder is reported, not overwritten
        return Cell(config, "failed", str(error))
    except OSError as error:
        return Cell(config, "failed", f"{store.root / config.id()}: {error.strerror or error}")


def _run_cell(config: RunConfig, *, store: Store, listening: Listening | None, **how: Any) -> None:
    """The work of one worker. All results are in the store."""
    if is_function(config.network.name):
        trust_network(config.network.name)  # as the process that made the grid does, see `Grid.run`
    with nullcontext([]) if listening is None else listening(config, store) as listeners:
        run(config, store, listeners=listeners, **how)


def _ended(outcome: Outcome[RunConfig, None], store: Store) -> Cell:
    if outcome.ok:
        return Cell(outcome.item, "finished")
    if outcome.kind == WORKER_DIED:
        _note_death(outcome, store)
        return Cell(outcome.item, "failed", f"{outcome.error}; the same command tries it again")
    return Cell(outcome.item, "failed", outcome.error)


def _note_death(outcome: Outcome[RunConfig, None], store: Store) -> None:
    """Records the failure of a run whose workers were killed."""
    try:
        with store.open(outcome.item) as writer:
            writer.event("failed", reason=WORKERS_DIED, message=outcome.error)
    except (SoftmaskError, OSError):
        pass  # its folder is not ours, or the disk is full: the cell stays unfinished and is tried again


def _has_ended(cell: Cell) -> bool:
    return cell.state in ("finished", "failed", "stale")
