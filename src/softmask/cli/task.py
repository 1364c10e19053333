"""`softmask task`: rename or remove a task of the model in a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model, OwnNetwork
from softmask.cli.printing import out
from softmask.models import ContinualModel

app = typer.Typer(
    help="Rename or remove a task of a model. Example: `softmask task rename pets-model birds garden-birds`",
    no_args_is_help=True,
)
Task = Annotated[str, typer.Argument(help="Name of the task.")]


@app.command()
def rename(
    model: Model,
    task: Task,
    name: Annotated[str, typer.Argument(help="New name of the task.")],
    network: OwnNetwork = None,
) -> None:
    """Rename a task.

    Example: `softmask task rename pets-model birds garden-birds`
    """
    options.allow_own_code(network)
    ContinualModel.open(model, network).rename(task, name)
    out.print(f"{task} is now {name}")


@app.command()
def remove(model: Model, task: Task, network: OwnNetwork = None, device: options.Device = "cpu") -> None:
    """Remove a task: its head and its kept samples. The weights shared with other tasks do not change.

    Example: `softmask task remove pets-model birds`
    """
    options.allow_own_code(network)
    opened = ContinualModel.open(model, network, device=device)
    opened.remove(task)
    out.print(f"{task} was removed; the model in {model} has the tasks {', '.join(opened.tasks)}")
