"""Progress of a grid: a live table on a terminal, otherwise a line for each cell."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from rich.live import Live
from rich.table import Table

from softmask.cli.printing import err, tell
from softmask.experiments.runs.config import RunConfig
from softmask.experiments.runs.grid import Cell


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
    """Cells by state, how many an hour, and how long it will take."""

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
            return f"{duration(elapsed)} gone"
        rate = self.run_here / elapsed
        return f"{3600 * rate:,.0f} cells an hour, {duration(self.left / rate)} left"

    def _table(self) -> Table:
        table = Table("cells", "finished", "failed", "running", "waiting", "pace")
        running = min(self.jobs, self.left)
        counted = (self.total, self.counts["finished"], self.counts["failed"], running, self.left - running)
        table.add_row(*map(str, counted), self._pace())
        return table
