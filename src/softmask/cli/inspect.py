"""`softmask inspect`: the tasks of the model in a folder, and its free capacity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model, OwnNetwork
from softmask.cli.printing import out, print_json, tell
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import print_table
from softmask.models import ContinualModel, Inspection
from softmask.models.inspection import (
    DRIFT_COLUMNS,
    TASK_COLUMNS,
    capacity_warning,
    drift_rows,
    percent,
    summary_line,
    task_rows,
)
from softmask.models.page import page


def inspect(
    model: Model,
    probe: Annotated[bool, typer.Option("--probe", help="Evaluate the samples kept by `learn --probe` again.")] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with the history instead.", metavar="FILE")
    ] = None,
    network: OwnNetwork = None,
    device: options.Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Show the tasks, their accuracy when learned, importance per layer, free capacity and size.

    Example: `softmask inspect pets-model --probe`
    """
    options.allow_own_code(network)
    opened = ContinualModel.open(model, network, device=device)
    found = opened.inspect(probe)
    if html is not None:
        html.write_text(page(found, opened.history()), encoding="utf-8")
        tell(f"page: {html}")
    elif as_json:
        print_json(found.to_dict())
    else:
        _show(found)
    if not as_json and (message := capacity_warning(found.tasks)):
        tell(f"note: {message}")


def _show(found: Inspection) -> None:
    out.print(f"{found.path}: {summary_line(found)}")
    tasks: list[tuple[Cell, ...]] = [*task_rows(found.tasks)]
    print_table(Table("Tasks", TASK_COLUMNS, tasks), out)
    if found.importance:
        layers: list[tuple[Cell, ...]] = [(layer, f"{mean:.3f}") for layer, mean in found.importance.items()]
        print_table(Table("Mean importance", ("layer", "importance"), layers), out)
        out.print(
            f"free capacity: {percent(found.free_capacity)} (one minus the mean importance); "
            f"{percent(found.blocked)} of the parameters cannot change at all"
        )
    else:
        out.print(f"{found.method} has no soft mask, so free capacity is unknown")
    if found.drift:
        drift: list[tuple[Cell, ...]] = [*drift_rows(found.drift)]
        print_table(Table("Kept samples", DRIFT_COLUMNS, drift), out)
