"""The Python interface of the experiments: run a method, a grid or a search, and load stored runs as a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from softmask.experiments.analyses.accuracy import Measures, measures, references, run_without_id
from softmask.experiments.analyses.grouping import changes as changed_fields
from softmask.experiments.analyses.grouping import training_name
from softmask.experiments.executors import ProcessExecutor, SerialExecutor
from softmask.experiments.metrics import NO_ID
from softmask.experiments.runs.config import RunConfig, make_config, network_name
from softmask.experiments.runs.data_check import ChangedData
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import run as run_config
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.backbones import NetworkFunction, is_function, name_of_function, trust_network
from softmask.learning.task import TaskSequence

if TYPE_CHECKING:
    from softmask.experiments.runs.search import Search

Place = str | Path
Network = str | NetworkFunction
STORE = "softmask-runs"
SEARCHES = "softmask-search"
COLUMNS = (
    *("method", "sequence", "tasks", "seed", "preset", "changed", "settings", "status"),
    *("ACC", "FWT", "BWT", NO_ID, "time", "memory", "path"),
)


@dataclass(frozen=True)
class RunResult:
    """A finished run. Accuracies are in percent, on the test sets."""

    run: StoredRun
    store: Store

    @property
    def config(self) -> RunConfig:
        return self.run.config

    @property
    def path(self) -> Path:
        return self.run.path

    def matrix(self) -> pd.DataFrame:
        """The accuracy matrix: row i after learning task i, column j on task j."""
        return self.run.matrix()

    @property
    def measures(self) -> Measures:
        """ACC, FWT and BWT; FWT is None unless the store has the matching run of ONE."""
        return measures(self.run, references(self.store.runs()))

    @property
    def accuracy(self) -> float:
        """ACC: the mean over all tasks after the last one."""
        value = self.measures["ACC"]
        assert value is not None
        return value

    @property
    def accuracy_without_id(self) -> float | None:
        """`ACC (no id)`: as `accuracy`, but without the task id. None for a run of an earlier release."""
        return run_without_id(self.run)

    @property
    def forward_transfer(self) -> float | None:
        return self.measures["FWT"]

    @property
    def backward_transfer(self) -> float | None:
        return self.measures["BWT"]


def run(
    method: str,
    sequence: str | TaskSequence,
    *,
    preset: str = "paper",
    seed: int = 1,
    tasks: int | None = None,
    network: Network | None = None,
    set: Mapping[str, Any] | None = None,
    data: Place | None = None,
    store: Place = STORE,
    device: str = "cpu",
    threads: int = 1,
    keep: str = "last",
    changed_data: ChangedData = "refuse",
) -> RunResult:
    """Runs a method on a sequence, given by its name or as an object, or loads the run if it is finished.

    `tasks` uses only the first N tasks; `set` changes fields, as in `{"epochs": 3, "network.width": 0.5}`. `network` is
    the backbone: a name as for `--network`, or a function at the top level of a module that builds it.
    """
    config = make_config(method, sequence, preset=preset, seed=seed, tasks=tasks, changes=_changes(set, network))
    run_store = Store(store)
    done = run_config(
        config,
        run_store,
        sequence=sequence if isinstance(sequence, TaskSequence) else None,
        data=None if data is None else Path(data),
        device=device,
        threads=threads,
        keep=keep,
        changed_data=changed_data,
    )
    return RunResult(done, run_store)


def _changes(set: Mapping[str, Any] | None, network: Network | None) -> dict[str, Any]:
    """The changes with the network. Naming a function here is permission to run it."""
    changes = dict(set or {})
    if network is not None:
        changes["network.name"] = network if isinstance(network, str) else name_of_function(network)
    if is_function(name := network_name(changes)):
        trust_network(name)
    return changes


def grid(
    methods: Sequence[str],
    sequences: Sequence[str],
    *,
    seeds: Sequence[int] = (1,),
    preset: str = "paper",
    tasks: int | None = None,
    network: Network | None = None,
    set: Mapping[str, Any] | None = None,
    data: Place | None = None,
    store: Place = STORE,
    device: str = "cpu",
    jobs: int = 1,
    retry_failed: bool = False,
) -> pd.DataFrame:
    """Runs every method on every sequence with every seed; returns one row per run, as `load_runs` does. Sequences are
    given by their names. Runs that fail are left out with a warning. With `jobs` above 1, call it under `if __name__ ==
    "__main__":`, since each process imports the script.
    """
    changes = _changes(set, network)
    wanted, run_store = Grid.of(methods, sequences, seeds, preset=preset, tasks=tasks, changes=changes), Store(store)
    executor = SerialExecutor() if jobs == 1 else ProcessExecutor(jobs=jobs)
    place = None if data is None else Path(data)
    for cell in wanted.run(run_store, executor, data=place, device=device, retry_failed=retry_failed):
        if cell.error is not None:
            warnings.warn(f"{cell.config.method} on {cell.config.sequence}: {cell.error}", stacklevel=2)
    found = load_runs(store)
    ids = {config.id() for config in wanted.configs}
    return found[[Path(path).name in ids for path in found["path"]]].reset_index(drop=True)


@dataclass(frozen=True)
class SearchResult:
    """A search and the settings that it found."""

    search: Search
    settings: dict[str, Any]
    """The best trial's values, in the form that `run(..., set=...)` accepts."""
    value: float
    """Mean validation accuracy of the best trial, in percent."""

    def trials(self) -> pd.DataFrame:
        """One row per trial."""
        return pd.DataFrame([{**vars(trial), **trial.found} for trial in self.search.trials()]).drop(columns="found")


def search(
    method: str,
    sequence: str,
    *,
    trials: int = 20,
    preset: str = "paper",
    seed: int = 1,
    tasks: int | None = None,
    network: Network | None = None,
    set: Mapping[str, Any] | None = None,
    dropout: bool = True,
    data: Place | None = None,
    store: Place = SEARCHES,
    study: str | None = None,
    device: str = "cpu",
) -> SearchResult:
    """Searches hyperparameters by mean validation accuracy; the first trial has the defaults."""
    from softmask.experiments.runs.search import Search, best_of, found_settings
    from softmask.experiments.runs.search_space import SearchPlan

    plan = SearchPlan(
        method=method,
        sequence=sequence,
        trials=trials,
        preset=preset,
        tasks=tasks,
        seed=seed,
        dropout=dropout,
        changes=_changes(set, network),
    )
    work = Search.of(plan, Path(store), study=study, data=None if data is None else Path(data), device=device)
    work.begin()
    work.work()
    records = work.trials()
    best = best_of(records)
    assert best.value is not None
    return SearchResult(work, found_settings(work, records).changes(), best.value)


def load_runs(store: Place = STORE) -> pd.DataFrame:
    """All readable runs of a store, one row each; folders that are left out are named in a warning.

    Accuracies are in percent, `ACC (no id)` is without the task id; `time` is in seconds, `memory` in MiB. FWT needs a
    run of ONE with the same seeds, network
    and training. An unfinished run has a status but no measures.
    """
    runs = []
    for found in Store(store).look():
        if isinstance(found, StoredRun):
            runs.append(found)
        else:
            warnings.warn(f"left out: {found}", stacklevel=2)
    alone = references(runs)
    return pd.DataFrame(list(_rows(runs, alone)), columns=list(COLUMNS))


def _rows(runs: Sequence[StoredRun], alone: Any) -> Iterator[tuple[Any, ...]]:
    for run in runs:
        config, summary, tasks = run.config, run.known_summary(), run.events("task")
        done = summary.status == "finished" and summary.accuracy is not None
        measured = measures(run, alone) if done else {"ACC": None, "FWT": None, "BWT": None}
        peaks = [event["peak_memory"] for event in tasks if event.get("peak_memory")]
        yield (
            *(config.method, config.sequence, summary.tasks, config.seeds.order),
            *(training_name(config.training), changed_fields(config), config.settings, summary.status),
            *measured.values(),
            run_without_id(run) if done else None,
            sum(event.get("learn_seconds", 0.0) + event.get("end_seconds", 0.0) for event in tasks),
            max(peaks) / 2**20 if peaks else None,
            str(run.path),
        )
