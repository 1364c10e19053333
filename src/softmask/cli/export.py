"""`softmask export`: one task of the model in a folder, for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.learn import Model, OwnNetwork
from softmask.cli.printing import out
from softmask.models import ContinualModel


def export(
    model: Model,
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    task: Annotated[str, typer.Option(help="Name of the task.")],
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="`safetensors` (the default), `torch` or `onnx`. May be repeated."),
    ] = None,
    network: OwnNetwork = None,
) -> None:
    """Export one task of a model for other programs: plain weights, a torch.export program, ONNX.

    The folder also gets `labels.json` with classes, input shape and normalisation.

    Example: `softmask export pets-model birds-export --task birds --format onnx`
    """
    options.allow_own_code(network)
    ContinualModel.open(model, network).export(folder, task, formats or ("safetensors",))
    out.print(f"exported {task} to {folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}")
