"""`softmask demo`: the main job on built-in data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.analyses.accuracy import accuracy
from softmask.cli.printing import out
from softmask.cli.run import perform
from softmask.report.tables import as_markdown, print_table
from softmask.runs.config import make_config
from softmask.runs.store import Store

METHODS = ("one", "ncl", "spg")
# A task of D-5 has only four batches of 64: smaller batches and more epochs give every method time to learn it.
CHANGES = {"epochs": 30, "batch": 16}


def demo(
    store: Annotated[Path, typer.Option(help="Folder in which the runs are kept.")] = Path("softmask-demo"),
) -> None:
    """Learn five tasks of two digits each, one after the other, with and without soft-masking.

    Example: `softmask demo`
    """
    kept = Store(store)
    out.print("Five tasks of two digits each (D-5), learned one after the other: what is left of the first at the end?")
    wanted = [make_config(method, "D-5", preset="short", changes=CHANGES) for method in METHODS]
    for config in wanted:
        perform(config, kept, None)
    ids = {config.id() for config in wanted}
    table = accuracy(run for run in kept.runs() if run.path.name in ids)
    print_table(table, out)
    report = store / "accuracy.md"
    report.write_text(as_markdown(table))
    out.print(f"\nThe runs lie in {store}, the table as Markdown in {report}.")
    out.print("Next: softmask list methods, softmask list sequences, softmask run --help")
