"""`softmask predict`: the classes of images, by the model in a folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model, OwnNetwork, allow_own_code
from softmask.cli.printing import out, print_json, problem
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import print_table
from softmask.models import ContinualModel


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    task: Annotated[str | None, typer.Option(help="Their task; without it every head answers.")] = None,
    network: OwnNetwork = None,
    device: options.Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Name the class of each image, with the probabilities.

    Images that cannot be read are listed at the end, and the exit code is 1.

    Example: `softmask predict pets-model new-photos --task cats-vs-dogs`
    """
    allow_own_code(network)
    damaged: list[str] = []
    found = ContinualModel.open(model, network, device=device).predict(images, task, damaged=damaged.append)
    if as_json:
        print_json([dataclasses.asdict(prediction) for prediction in found])
    elif found:
        rows: list[tuple[Cell, ...]] = [(p.item, p.task, p.label, f"{100 * p.confidence:.1f} %") for p in found]
        print_table(Table("Predictions", ("image", "task", "class", "confidence"), rows), out)
    for message in damaged:
        problem(message)
    if damaged:
        raise typer.Exit(1)
