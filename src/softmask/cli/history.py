"""`softmask history`: the events of the model in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model
from softmask.cli.printing import out, print_json, tell
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import print_table
from softmask.models import History
from softmask.models.folder import ModelFolder
from softmask.models.history import read_history


def history(
    model: Model,
    plot: Annotated[Path | None, typer.Option(help="Also plot the accuracies to this file (.png, .svg, .pdf).")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the history of a model: its events, and the accuracy of each task after each of them.

    Accuracies at later events are known only for tasks with kept samples (`learn --probe N`).

    Example: `softmask history pets-model --plot pets.svg`
    """
    folder = ModelFolder(model)
    folder.read_config()  # raises if the folder is not a model
    found = read_history(folder.history)
    if plot is not None:
        found.draw(plot)
    if as_json:
        print_json(found.to_dict())
        return
    print_table(history_table(found), out)
    if plot is not None:
        tell(f"plot: {plot}")


def history_table(found: History) -> Table:
    tasks = list(found.curves)
    rows: list[tuple[Cell, ...]] = []
    for event in found.events:
        known = (event.accuracies.get(task) for task in tasks)
        shares = ("-" if share is None else f"{100 * share:.1f} %" for share in known)
        rows.append((event.time, event.kind, event.task, *shares))
    return Table("History", ("time", "event", "task", *tasks), rows)
