"""`softmask demo`: four methods on built-in data, with a report at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.cli.grid import GridDisplay
from softmask.cli.printing import out
from softmask.cli.report import write_report
from softmask.errors import SoftmaskError
from softmask.experiments.analyses.accuracy import accuracy
from softmask.experiments.executors import make_executor
from softmask.experiments.report.tables import print_table
from softmask.experiments.runs.built_in_settings import built_in_settings
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.store import Store

METHODS = ("one", "ncl", "spg", "hat")
SEQUENCES = ("D-5", "R-10")
EXECUTOR = "processes"


def demo(
    store: Annotated[Path, typer.Option(help="Folder in which the runs are stored.")] = Path("softmask-demo"),
) -> None:
    """Learn task after task with and without soft-masking, on built-in data, and write a report.

    Example: `softmask demo`
    """
    run_store = Store(store)
    out.print("Five tasks of two digits each (D-5), and ten tasks of all digits, rotated further each time (R-10),")
    out.print("learned one after the other. How much of the first tasks is forgotten at the end?")
    grid = Grid.of(METHODS, SEQUENCES, (1,), preset="short", changes=built_in_settings)
    executor = make_executor(EXECUTOR)
    with GridDisplay(grid.cells(run_store), executor.jobs, retry_failed=True) as display:
        for cell in grid.run(run_store, executor, retry_failed=True):
            display.ended(cell)
            if cell.error is not None:
                raise SoftmaskError(f"{cell.config.method} on {cell.config.sequence} failed: {cell.error}")
    ids = {config.id() for config in grid.configs}
    print_table(accuracy(run for run in run_store.runs() if run.path.name in ids), out)
    write_report(store, store / "report.html")
    out.print(f"\nThe runs are in {store}; open {(store / 'report.html').absolute().as_uri()} in a browser.")
    out.print("Next: softmask list methods, softmask list sequences, softmask run --help")
