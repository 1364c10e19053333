"""`softmask predict`: the classes of images, by the model in a folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model, OwnNetwork
from softmask.cli.printing import out, print_json, problem
from softmask.cli.watching import arrivals
from softmask.errors import escaped
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import print_table
from softmask.models import ContinualModel


def predict(
    model: Model,
    images: Annotated[list[Path] | None, typer.Argument(help="Images, or folders of them.")] = None,
    task: Annotated[
        str | None, typer.Option(help="Task of the images; without it the task is inferred, with a confidence.")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option(help="Classify the images in this folder, and those that arrive later, until Ctrl-C."),
    ] = None,
    network: OwnNetwork = None,
    device: options.Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Name the class of each image, with the probabilities.

    Images that cannot be read are listed at the end, and the exit code is 1. With `--watch` one line is printed per
    image, with `--json` in JSON.

    Example: `softmask predict pets-model new-photos --task cats-vs-dogs`
    """
    options.allow_own_code(network)
    if bool(images) == (watch is not None):
        raise typer.BadParameter("name images, or a folder to --watch")
    opened = ContinualModel.open(model, network, device=device)
    if watch is not None:
        _watch(opened, watch, task, as_json)
        return
    damaged: list[str] = []
    found = opened.predict(images, task, damaged=damaged.append)
    if as_json:
        print_json([dataclasses.asdict(prediction) for prediction in found])
    elif found:
        rows: list[tuple[Cell, ...]] = [
            (p.item, p.task, _percent(p.task_share), p.label, _percent(p.confidence)) for p in found
        ]
        table = Table("Predictions", ("image", "task", "task found with", "class", "confidence"), rows)
        print_table(table.without_empty_columns(), out)
    for message in damaged:
        problem(message)
    if damaged:
        raise typer.Exit(1)


def _watch(model: ContinualModel, folder: Path, task: str | None, as_json: bool) -> None:
    for files in arrivals(folder):
        if not files:
            continue
        model.refresh()
        for found in model.predict(files, task, damaged=problem):
            if as_json:
                out.print(json.dumps(dataclasses.asdict(found)), soft_wrap=True)
            else:
                out.print(f"{escaped(found.item)}: {found.task} {found.label} {100 * found.confidence:.1f} %")
        out.file.flush()


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.1f} %"
