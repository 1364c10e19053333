"""`softmask reproduce`: a table or figure of the paper, from its runs to the comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.cli import options
from softmask.cli.analyse import Format, chosen_format, show_table
from softmask.cli.grid import ALL, Cpus, ExecutorName, Gpus, GridDisplay, Jobs, Names, Seeds, cell_name, find_workers
from softmask.cli.printing import out, print_json, problem, tell
from softmask.errors import SoftmaskError
from softmask.experiments.analyses.table import Table
from softmask.experiments.executors import Executor
from softmask.experiments.paper import paper_tables
from softmask.experiments.paper.reproduction import (
    NAMES,
    PaperTable,
    network_sizes,
    paper_table,
    statistics_of_sequences,
)
from softmask.experiments.report.tables import WRITERS
from softmask.experiments.runs.dry_run import forecast_grid
from softmask.experiments.runs.grid import Cell, Grid
from softmask.experiments.runs.grid_file import parse_seeds
from softmask.experiments.runs.store import Store, StoredRun


def reproduce_command(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    preset: options.Preset = "paper",
    sequences: options.Sequences = None,
    methods: Names = None,
    seeds: Seeds = None,
    tasks: options.Tasks = None,
    data: options.Data = None,
    store: options.StorePath = options.DEFAULT_STORE,
    settings: options.Settings = None,
    change: options.Changes = None,
    device: options.Device = "cpu",
    executor: ExecutorName = "processes",
    jobs: Jobs = None,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; `auto` for this machine's.")] = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show runs, time, memory and disk.")] = False,
    form: Format = "text",
    as_json: options.AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper: run or reuse the runs behind it, compare, and judge.

    Seeds are 1-5 with the paper's training, else 1. A verdict needs the paper's training and three seeds.

    Example: `softmask reproduce accuracy --preset short --sequences D-5,R-10`
    """
    form, wanted = chosen_format(form, as_json), paper_table(table)
    names, names_of_methods = options.split_names(sequences), options.split_names(methods)
    if not wanted.needs_runs:
        _show([] if dry_run else _without_runs(wanted, names, data), wanted, form)
        return
    grid = wanted.grid(
        sequences=names,
        methods=None if names_of_methods == [ALL] else names_of_methods,
        seeds=parse_seeds(seeds) if seeds else None,
        preset=preset,
        tasks=tasks,
        changes=lambda method, sequence: options.all_changes(settings, change, method, sequence),
    )
    for name, reason in grid.left_out.items():
        tell(f"left out: {name}: {reason}")
    workers, measured_on = find_workers(executor, device, jobs=jobs, address=address, cpus=cpus, gpus=gpus)
    run_store = Store(store)
    if dry_run:
        cells, jobs = grid.cells(run_store), workers.jobs
        how: dict[str, Any] = {"keep": wanted.keep, "device": measured_on, "retry_failed": retry_failed}
        expected = forecast_grid(cells, run_store, data, jobs=jobs, watch=tell, **how)
        for line in expected.lines():
            out.print(line)
        return
    failed = _run(grid, run_store, workers, retry_failed=retry_failed, keep=wanted.keep, data=data, device=device)
    runs = _measured(wanted, grid, run_store, data)
    found = wanted.tables(runs)
    if not found[0].rows:
        raise SoftmaskError(f"the runs of {store} have no data for `{wanted.name}`")
    _show(found, wanted, form)
    for cell in failed:
        problem(f"{cell_name(cell.config)}: {cell.error}")
    if failed:
        raise typer.Exit(1)


def _without_runs(wanted: PaperTable, names: Sequence[str] | None, data: Path | None) -> list[Table]:
    if wanted.name == "statistics":
        return [statistics_of_sequences(names or list(paper_tables()["sequences"]), data)]
    return network_sizes()


def _run(grid: Grid, store: Store, workers: Executor, *, retry_failed: bool, **how: Any) -> list[Cell]:
    """Runs the missing cells; returns those that failed."""
    failed = []
    with GridDisplay(grid.cells(store), workers.jobs, retry_failed=retry_failed) as display:
        for cell in grid.run(store, workers, retry_failed=retry_failed, **how):
            display.ended(cell)
            if cell.state == "failed":
                failed.append(cell)
    return failed


def _measured(wanted: PaperTable, grid: Grid, store: Store, data: Path | None) -> list[StoredRun]:
    """The finished runs, measured on their checkpoints where the table needs that."""
    runs = []
    for config in grid.configs:
        with suppress(SoftmaskError):  # a damaged folder was shown as a failed cell
            if (run := store.find(config)) is not None and run.finished:
                runs.append(run)
    if not runs:
        raise SoftmaskError(f"no run behind `{wanted.name}` could be finished: see `softmask list runs`")
    if wanted.measure is None:
        return runs
    for run in runs:
        try:
            wanted.measure(run, store, data)
        except SoftmaskError as error:
            tell(f"left out: {error}")
    return [StoredRun(run.path) for run in runs]


def _show(tables: Sequence[Table], wanted: PaperTable, form: str) -> None:
    if form == "json":
        content: list[Any] = [json.loads(WRITERS["json"](table)) for table in tables]
        print_json({"name": wanted.name, "paper": wanted.place, "tables": content})
        return
    (out.print if form == "text" else tell)(f"{wanted.name}: the paper's {wanted.place}")
    for table in tables:
        if table.rows:
            show_table(table, form)
    if not tables:
        out.print("no run is needed")
