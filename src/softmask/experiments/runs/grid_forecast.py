"""What is left of a grid, before it starts: which cells, how long, how much memory and disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.forecast import Forecast, forecast
from softmask.experiments.runs.grid import Cell
from softmask.experiments.runs.run import load
from softmask.experiments.runs.store import Store
from softmask.experiments.sequences import sequence_facts
from softmask.learning.device import CPU
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence

MIB = 2**20


@dataclass(frozen=True)
class GridForecast:
    """Expected, not promised."""

    cells: tuple[Cell, ...]
    jobs: int
    seconds: float
    """Of all that is not finished, with so many jobs at a time on machines like this."""
    memory_bytes: int
    """While the largest cells run side by side."""
    disk_bytes: int
    """That will be taken in addition."""
    unknown: dict[str, str]
    """Sequences about which nothing can be told, and why."""
    notes: dict[str, str]
    """What grows with the number of tasks, by method."""

    def lines(self) -> list[str]:
        """One for each method and sequence, then the sums."""
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.config.sequence, cell.config.method), []).append(cell)
        found = [f"{method} on {sequence}: {_by_state(cells)}" for (sequence, method), cells in groups.items()]
        hours, minutes = divmod(round(self.seconds / 60), 60)
        return [
            *found,
            f"cells   {len(self.cells)}: {_by_state(self.cells)}",
            f"time    {hours} h {minutes} min for what is not finished, {self.jobs} at a time on machines like this",
            f"memory  {self.memory_bytes / MIB:,.0f} MiB",
            f"disk    {self.disk_bytes / MIB:,.0f} MiB in addition",
            *(f"note    {method}: {note}" for method, note in self.notes.items()),
            *(f"note    nothing can be told of {sequence}: {reason}" for sequence, reason in self.unknown.items()),
        ]


def _by_state(cells: Sequence[Cell]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(cell.state for cell in cells).items())


def forecast_grid(
    cells: Sequence[Cell],
    store: Store,
    data: Path | None,
    *,
    jobs: int,
    keep: str = "last",
    device: torch.device = CPU,
    retry_failed: bool = False,
) -> GridForecast:
    """Each way of running is measured once, whatever its number of seeds; of a cell that is begun, the rest counts."""
    known: dict[str, Forecast] = {}
    sequences: dict[tuple[str, int | None], TaskSequence] = {}
    unknown: dict[str, str] = {}
    notes: dict[str, str] = {}
    expected: list[tuple[Forecast, float]] = []
    for cell in cells:
        config = cell.config
        at_its_end = cell.state == "finished" or (cell.state == "failed" and not retry_failed)
        if at_its_end or config.sequence in unknown:
            continue
        key = repr(config.with_seeds(Seeds()))
        try:
            if key not in known:
                name = (config.sequence, config.tasks)
                if name not in sequences:
                    sequences.clear()  # cells come sequence by sequence: one in memory is enough
                    sequences[name] = load(config, data).on(device)
                known[key] = forecast(config, sequences[name])
        except SoftmaskError as error:
            unknown[config.sequence] = str(error)
            continue
        if known[key].note:
            notes[config.method] = known[key].note
        expected.append((known[key], _rest(config, store)))
    kept = [each.kept_bytes if keep == "last" else each.all_kept_bytes for each, _ in expected]
    largest = sorted((each.memory_bytes for each, _ in expected), reverse=True)[:jobs]
    working = sorted((each.disk_bytes - each.kept_bytes for each, _ in expected), reverse=True)[:jobs]
    return GridForecast(
        cells=tuple(cells),
        jobs=jobs,
        seconds=sum(each.seconds * rest for each, rest in expected) / max(1, min(jobs, len(expected))),
        memory_bytes=sum(largest),
        disk_bytes=sum(kept) + sum(working),
        unknown=unknown,
        notes=notes,
    )


def _rest(config: RunConfig, store: Store) -> float:
    """The share of the tasks that is not learned yet."""
    try:
        found = store.find(config)
    except SoftmaskError:
        return 1.0
    if found is None:
        return 1.0
    return 1.0 - found.stages_done() / (config.tasks or sequence_facts(config.sequence).tasks)
