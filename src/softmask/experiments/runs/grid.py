"""Methods x sequences x seeds: which runs that makes, how far each is, and running those that are missing."""

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
from softmask.experiments.paper.published import paper_tables
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.index import Index
from softmask.experiments.runs.run import may_change, run, tell_if_code_changed
from softmask.experiments.runs.store import Listener, Store
from softmask.learning.method_registry import METHODS
from softmask.learning.seeds import Seeds
from softmask.storage.lease import FolderBusyError

PAPER_SEEDS = (1, 2, 3, 4, 5)
SEEDS_SET_BY_HAND = "each of seeds.order, split, init and batches is set, so they would be the same run again"
SECONDS_BETWEEN_LOOKS = 1.0
State = Literal["finished", "failed", "running", "begun", "missing"]
Changes = Callable[[str, str], Mapping[str, Any]]
"""What is changed for a method on a sequence."""
Listening = Callable[[RunConfig, Store], AbstractContextManager[Sequence[Listener]]]
"""Who listens to a cell while it runs; must be something that can go to another process."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid and how far it is."""

    config: RunConfig
    state: State
    error: str | None = None
    """Why it failed."""
    elsewhere: bool = False
    """Whether another process brought it to its end."""


@dataclass(frozen=True)
class Grid:
    """The runs that are wanted, and those that are left out with the reason."""

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
        """Every method on every sequence with every seed, seeds last: a table's row is complete early.

        Unless methods and sequences were `named` by somebody, what the paper could not afford is left out.
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

    def cells(self, store: Store) -> list[Cell]:
        """How far each run is."""
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
    ) -> Iterator[Cell]:
        """Runs what is missing; yields every cell once, when it has come to its end, the finished ones first.

        A cell that failed before is not tried again unless `retry_failed`. One that another live process writes is left
        to it, and waited for after all others; should that process die, the cell is run here.
        """
        store = Store(store.root.absolute())  # workers may stand elsewhere
        work = functools.partial(
            _run_cell,
            store=store,
            data=data and data.absolute(),
            keep=keep,
            checkpoint_every=checkpoint_every,
            device=device,
            listening=listening,
        )
        waiting: dict[str, RunConfig] = {}
        for cell in self.cells(store):
            # Where a sequence is a folder, a finished run is still to be compared with what lies there now.
            finished = cell.state == "finished" and not may_change(cell.config)
            if finished or (cell.state == "failed" and not retry_failed):
                if listening is not None:  # a tracker may have been asked for only now, or been down before
                    with listening(cell.config, store):
                        pass
                yield cell
            else:
                waiting[cell.config.id()] = cell.config
        while waiting:
            free = [config for config in waiting.values() if not store.busy(config)]
            for outcome in executor.map(work, free):
                if outcome.kind != FolderBusyError.__name__:
                    del waiting[outcome.item.id()]
                    yield _ended(outcome, store)
            if waiting and not free:
                time.sleep(SECONDS_BETWEEN_LOOKS)
            elsewhere = [cell for cell in (look(config, store) for config in waiting.values()) if _at_its_end(cell)]
            for cell in elsewhere:
                del waiting[cell.config.id()]
                yield Cell(cell.config, cell.state, cell.error, elsewhere=True)


def _seeded(method: str, sequence: str, seeds: Sequence[int], **options: Any) -> Iterator[RunConfig]:
    """One config for each seed, checked once: nothing but the seeds differs."""
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
    """Why the paper has no number for a system on one of its sequences; None if it has, or does not know either."""
    row = paper_tables()["accuracy"].get(METHODS.load(method).title, {})
    if sequence not in row or row[sequence] is not None:
        return None
    return "N/A in the paper: its training time grows with the square of the number of tasks; name both to run it"


def look(config: RunConfig, store: Store, index: Index | None = None) -> Cell:
    """How far a run is."""
    try:
        known = store.find(config, index)
        if known is not None and known.known_summary().status == "finished":
            tell_if_code_changed(known)
            return Cell(config, "finished")
        if store.busy(config):
            return Cell(config, "running")
        if known is None:
            return Cell(config, "missing")
        if known.status == "failed":
            return Cell(config, "failed", str(known.events("failed")[-1].get("message")))
        return Cell(config, "begun")
    except SoftmaskError as error:  # a damaged folder: to be told, not to be run over
        return Cell(config, "failed", str(error))


def _run_cell(config: RunConfig, *, store: Store, listening: Listening | None, **how: Any) -> None:
    """What a worker does. Everything worth keeping is in the store."""
    with nullcontext([]) if listening is None else listening(config, store) as listeners:
        run(config, store, listeners=listeners, **how)


def _ended(outcome: Outcome[RunConfig, None], store: Store) -> Cell:
    if outcome.ok:
        return Cell(outcome.item, "finished")
    if outcome.kind == WORKER_DIED:
        _note_death(outcome, store)
    return Cell(outcome.item, "failed", outcome.error)


def _note_death(outcome: Outcome[RunConfig, None], store: Store) -> None:
    """A run that killed its workers could not write so itself; without it, the next grid would fall into the trap."""
    try:
        with store.open(outcome.item) as writer:
            writer.event("failed", reason="worker died", message=outcome.error)
    except SoftmaskError:
        pass  # its folder is not ours, or the disk is full: the cell stays unfinished and is tried again


def _at_its_end(cell: Cell) -> bool:
    return cell.state in ("finished", "failed")
