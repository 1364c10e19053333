"""`softmask grid`: methods x sequences x seeds, run or continued until all are finished, with its progress display."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.live import Live
from rich.table import Table

from softmask.cli import options
from softmask.cli.printing import err, out, problem, tell
from softmask.errors import ConfigError
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.executors import NAMES, Executor, RayExecutor, make_executor
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.data_check import TaskNames, check_policy, check_sequences
from softmask.experiments.runs.dry_run import GridForecast, forecast_grid
from softmask.experiments.runs.grid import Cell, Grid, paper_grid
from softmask.experiments.runs.grid_file import GridFile, parse_seeds, read_grid_file
from softmask.experiments.runs.settings_file import settings_changes
from softmask.experiments.runs.slurm import read_shard, write_job_array
from softmask.experiments.runs.store import Store
from softmask.experiments.trackers import check_trackers, tracked
from softmask.learning.backbones import is_function
from softmask.learning.device import CPU, find_device, parse_device
from softmask.learning.registry import METHODS


def cell_name(config: RunConfig) -> str:
    return f"{config.method} on {config.sequence}, seed {config.seeds.order}"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(shown[:2]) or "0 s"


class GridDisplay:
    """Progress of a grid: the number of cells in each state, the pace, and the remaining time."""

    def __init__(self, cells: Sequence[Cell], jobs: int, *, retry_failed: bool) -> None:
        self.total, self.jobs = len(cells), jobs
        again = ("failed",) if retry_failed else ()
        self.to_run = sum(cell.state in ("missing", "begun", "running", *again) for cell in cells)
        self.counts: Counter[str] = Counter()
        self.run_here = self.came = 0
        self.start = time.monotonic()
        self._live = Live(get_renderable=self._table, console=err, refresh_per_second=2, transient=True)

    def __enter__(self) -> GridDisplay:
        if err.is_terminal:
            self._live.start()
        else:
            tell(f"{self.total} cells, {self.total - self.to_run} already there, {self.jobs} at a time")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def ended(self, cell: Cell) -> None:
        """A cell that was there before is only counted."""
        self.came += 1
        self.counts[cell.state] += 1
        if self.came <= self.total - self.to_run:
            return
        self.run_here += not cell.elsewhere
        if not err.is_terminal:
            note = f": {cell.error}" if cell.error else " by another process" if cell.elsewhere else ""
            tell(f"[{self.came}/{self.total}] {cell_name(cell.config)}: {cell.state}{note}; {self._pace()}")

    @property
    def left(self) -> int:
        return self.total - self.came

    def _pace(self) -> str:
        elapsed = time.monotonic() - self.start
        if not self.run_here:
            return f"{duration(elapsed)} elapsed"
        rate = self.run_here / elapsed
        return f"{3600 * rate:,.0f} cells an hour, {duration(self.left / rate)} left"

    def _table(self) -> Table:
        table = Table("cells", "finished", "failed", "running", "waiting", "pace")
        running = min(self.jobs, self.left)
        counted = (self.total, self.counts["finished"], self.counts["failed"], running, self.left - running)
        table.add_row(*map(str, counted), self._pace())
        return table


ALL = "all"
Names = Annotated[list[str] | None, typer.Option("--methods", "-m", help="As in `spg,ncl,one`, or `all`.")]
Seeds = Annotated[str | None, typer.Option("--seeds", help="As in `1-5` or `1,2,7`.")]
File = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read the grid from a TOML or YAML file; flags override it.")
]
Jobs = Annotated[
    int | None,
    typer.Option("--jobs", "-j", min=1, help="Number of processes (default: one per core, or one on a GPU)."),
]
Cpus = Annotated[float, typer.Option(min=0, help="Processors per cell on a Ray cluster.")]
Gpus = Annotated[float, typer.Option(min=0, help="GPUs per cell on a Ray cluster.")]
ExecutorName = Annotated[str, typer.Option("--executor", help=f"Where cells run: {', '.join(NAMES)}.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", help="GPUs of this machine, as in `0,1`; one process each, or `--jobs` in all."),
]


def grid_command(
    methods: Names = None,
    sequences: options.Sequences = None,
    seeds: Seeds = None,
    file: File = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's grid: 760 cells and 135 ablations.")] = False,
    preset: Annotated[str | None, typer.Option("--preset", "-p", help=f"How to train: {options.PRESET_HELP}.")] = None,
    tasks: options.Tasks = None,
    data: options.Data = None,
    store: options.StorePath = options.DEFAULT_STORE,
    settings: options.Settings = None,
    change: options.Changes = None,
    network: options.Network = None,
    with_one: Annotated[bool, typer.Option(help="Also run ONE for each cell: forward transfer needs it.")] = False,
    device: options.Device = "cpu",
    devices: Devices = None,
    precision: options.Precision = None,
    executor: ExecutorName = "processes",
    jobs: Jobs = None,
    address: Annotated[str | None, typer.Option(help="Address of the Ray cluster; `auto` for this machine's.")] = None,
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only estimate cells, time, memory and disk.")] = False,
    checkpoint_every: options.CheckpointEvery = 1,
    keep: options.Keep = "last",
    changed_data: options.ChangedData = "refuse",
    track: options.Track = None,
    slurm: Annotated[
        Path | None,
        typer.Option("--slurm", help="Run nothing; write a Slurm job array for the missing cells to this folder."),
    ] = None,
    shards: Annotated[int, typer.Option(min=1, help="Number of tasks in the job array.")] = 8,
    shard: Annotated[
        Path | None, typer.Option("--shard", help="Run the cells listed in this file of a job array.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run methods x sequences x seeds. Run it again, or several times at once: only missing cells are run.

    Example: `softmask grid --methods one,ncl,spg --sequences D-5 --seeds 1-3 --preset short`
    """
    options.check_keep(keep)
    policy = check_policy(changed_data)
    check_trackers(track or ())
    if shard is not None:
        if any((methods, sequences, seeds, file, paper, preset, tasks, settings, change, precision, with_one, slurm)):
            raise ConfigError("--shard already specifies the cells: omit --methods, --sequences and similar options")
        options.allow_own_code(network)
        grid = read_shard(shard)
    else:
        wanted = _with_flags(
            read_grid_file(file) if file else GridFile(), methods, sequences, seeds, paper, preset, tasks, settings
        )
        grid = make_grid(wanted, options.parse_changes(options.with_precision(change, precision, network)))
        grid = grid.with_reference(REFERENCE) if with_one else grid
    run_store = Store(store)
    for name, reason in grid.left_out.items():
        tell(f"left out: {name}: {reason}")
    if slurm is not None:
        again = ("failed",) if retry_failed else ()
        left = [cell.config for cell in grid.cells(run_store) if cell.state in ("missing", "begun", "running", *again)]
        same: dict[str, Any] = {
            "--store": store.absolute(),
            "--data": data and data.absolute(),
            "--device": device,
            "--keep": keep,
        }
        same |= {"--checkpoint-every": checkpoint_every, "--changed-data": policy, "--network": _own_code(grid)}
        given = [str(part) for name, value in same.items() if value is not None for part in (name, value)]
        given += [part for name in track or () for part in ("--track", name)]
        given += ["--retry-failed"] if retry_failed else []
        command = [sys.executable, "-m", "softmask", "grid", *given]
        script = write_job_array(slurm, left, shards, command, gpu=parse_device(device) != CPU)
        out.print(f"{len(left)} cells in {min(shards, len(left))} shards; next: sbatch {script}")
        return
    device = device if devices is None else "cuda"
    workers, measured_on = find_workers(
        executor, device, jobs=jobs, devices=parse_devices(devices), address=address, cpus=cpus, gpus=gpus
    )
    if dry_run:
        slots = 1 if isinstance(workers, RayExecutor) and address is None else workers.jobs
        how: dict[str, Any] = {"jobs": slots, "keep": keep, "device": measured_on, "retry_failed": retry_failed}
        expected = forecast_grid(grid.cells(run_store), run_store, data, watch=tell, **how)
        _estimate(grid, run_store, expected, as_json)
        return
    check_sequences(run_store, {config.sequence for config in grid.configs}, TaskNames(data))
    ended = []
    with GridDisplay(grid.cells(run_store), workers.jobs, retry_failed=retry_failed) as display:
        for cell in grid.run(
            run_store,
            workers,
            data=data,
            keep=keep,
            checkpoint_every=checkpoint_every,
            device=device,
            retry_failed=retry_failed,
            listening=functools.partial(tracked, names=track) if track else None,
            changed_data=policy,
        ):
            ended.append(cell)
            display.ended(cell)
    _show(grid, ended, store, as_json)


def _own_code(grid: Grid) -> str | None:
    """The user's own function that builds the cells' networks, if there is one."""
    names = {config.network.name for config in grid.configs if is_function(config.network.name)}
    if len(names) > 1:
        raise ConfigError(f"a job array can run only one network of your own, not {' and '.join(sorted(names))}")
    return next(iter(names), None)


def parse_devices(devices: str | None) -> tuple[str, ...]:
    """`0,1`: the GPUs of this machine by their numbers."""
    if devices is None:
        return ()
    numbers = tuple(part.strip() for part in devices.split(","))
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise ConfigError(f"--devices takes distinct GPU numbers, as in 0,1, not {devices!r}")
    return numbers


def find_workers(
    name: str, device: str, *, jobs: int | None, devices: tuple[str, ...] = (), **on_ray: Any
) -> tuple[Executor, torch.device]:
    """The executor, and the device of a dry run: with Ray the CPU, since the nodes have the GPUs."""
    wanted = parse_device(device)
    if devices and name != "processes":
        raise ConfigError("--devices needs `--executor processes`: with Ray use --gpus, otherwise --device cuda:N")
    for number in devices:
        find_device(f"cuda:{number}")
    workers = make_executor(name, jobs=jobs or (None if wanted == CPU or devices else 1), devices=devices, **on_ray)
    if not isinstance(workers, RayExecutor):
        return workers, find_device(device)
    if wanted == CPU and workers.gpus:
        raise ConfigError("--gpus reserves GPUs for cells that run on the CPU: add --device cuda")
    if wanted.index is not None:
        raise ConfigError(f"Ray chooses the GPU of a cell: use --device {wanted.type}")
    if wanted != CPU and not workers.gpus:
        raise ConfigError("cells need a GPU of the cluster: say with --gpus what share of one each takes")
    if wanted != CPU:
        tell("time and memory are estimated on the CPU: the GPUs are on the nodes")
    return workers, CPU


def _with_flags(
    file: GridFile,
    methods: list[str] | None,
    sequences: list[str] | None,
    seeds: str | None,
    paper: bool,
    preset: str | None,
    tasks: int | None,
    settings: str | None,
) -> GridFile:
    """Flags override the file."""
    return GridFile(
        methods=options.split_names(methods) or file.methods,
        sequences=options.split_names(sequences) or file.sequences,
        seeds=parse_seeds(seeds) if seeds else file.seeds,
        paper=paper or file.paper,
        preset=preset or file.preset,
        tasks=tasks or file.tasks,
        settings=settings or file.settings,
        set=file.set,
        sequence=file.sequence,
        method=file.method,
    )


def make_grid(wanted: GridFile, by_hand: Mapping[str, Any]) -> Grid:
    """The cells; changes `by_hand` override all others."""
    for method in wanted.method:
        METHODS.entry(method)
        if not wanted.paper and not {method, ALL} & set(wanted.methods or ()):
            tell(f"note: [method.{method}] has no effect: {method} is not among the methods")
    for sequence in wanted.sequence:
        if not wanted.paper and sequence not in (wanted.sequences or ()):
            tell(f'note: [sequence."{sequence}"] has no effect: {sequence} is not among the sequences')

    def changes(method: str, sequence: str) -> dict[str, Any]:
        found = {} if wanted.settings is None else settings_changes(wanted.settings, method, sequence)
        layers = [found, wanted.set, wanted.sequence.get(sequence, {}), wanted.method.get(method, {}), by_hand]
        merged: dict[str, Any] = {}
        for layer in layers:  # of two names of one field the later one counts
            merged = {name: value for name, value in merged.items() if name not in layer} | dict(layer)
        return merged

    every = ALL in (wanted.methods or ())
    methods = METHODS.names() if every else wanted.methods
    common: dict[str, Any] = {"preset": wanted.preset or "paper", "tasks": wanted.tasks, "changes": changes}
    if wanted.paper:
        seeds = {"seeds": wanted.seeds} if wanted.seeds else {}
        return paper_grid(methods=methods, sequences=wanted.sequences, **seeds, **common)
    if not methods or not wanted.sequences:
        raise ConfigError("which cells? give --methods and --sequences, a --file with them, or --paper")
    return Grid.of(methods, wanted.sequences, wanted.seeds or [1], named=not every, **common)


def _plain(cell: Cell) -> dict[str, Any]:
    config = cell.config
    return {
        "id": config.id(),
        "method": config.method,
        "sequence": config.sequence,
        "seed": config.seeds.order,
        "state": cell.state,
        "error": cell.error,
    }


def _estimate(grid: Grid, store: Store, expected: GridForecast, as_json: bool) -> None:
    if as_json:
        plain = {**vars(expected), "cells": [_plain(cell) for cell in expected.cells]}
        typer.echo(json.dumps({**plain, "left_out": grid.left_out, "store": str(store.root)}, indent=1))
        return
    for line in expected.lines():
        out.print(line)


def _show(grid: Grid, ended: list[Cell], store: Path, as_json: bool) -> None:
    place = {config.id(): number for number, config in enumerate(grid.configs)}
    ended.sort(key=lambda cell: place[cell.config.id()])
    failed = [cell for cell in ended if cell.state == "failed"]
    if as_json:
        content = {"store": str(store), "cells": [_plain(cell) for cell in ended], "left_out": grid.left_out}
        typer.echo(json.dumps(content, indent=1))
    else:
        out.print(f"{len(ended)} cells: {len(ended) - len(failed)} finished, {len(failed)} failed")
        out.print(f"results: {store}; next: softmask analyse accuracy --store {store}")
    by_error: dict[str | None, list[Cell]] = {}
    for cell in failed:
        by_error.setdefault(cell.error, []).append(cell)
    for error, cells in by_error.items():
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        problem(f"{cell_name(cells[0].config)}{more}: {error}")
    if failed:
        tell("failed cells are run again only with --retry-failed")
        raise typer.Exit(1)
