"""Options that several verbs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.errors import ConfigError
from softmask.experiments.runs.settings_file import settings_changes

Method = Annotated[str, typer.Option("--method", "-m", help="A method: see `softmask list methods`.")]
Sequence = Annotated[str, typer.Option("--sequence", "-s", help="A task sequence: see `softmask list sequences`.")]
Sequences = Annotated[list[str] | None, typer.Option("--sequences", "-s", help="As in `D-5,R-10`.")]
Preset = Annotated[str, typer.Option("--preset", "-p", help="How to train: `paper`, or `short` for a CPU.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Class order, split, initial weights and batches.")]
Tasks = Annotated[int | None, typer.Option("--tasks", min=1, help="Only the first so many tasks.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="SOFTMASK_DATA", help="Folder with the data sets, for sequences that need one."),
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: `cpu`, or as in `cuda`, `cuda:1`.")]
StorePath = Annotated[Path, typer.Option("--store", envvar="SOFTMASK_STORE", help="Folder in which runs are kept.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one field, as in `--set epochs=3 --set network.width=0.5`. May be repeated."),
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="Of the training step: `fp32`, or `bf16`, quicker where the processor has it."),
]
Settings = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help="Settings that a search found: a file, a folder DIR/SEQUENCE/METHOD.json, or `paper` for those published "
        "by its authors. What `--set` says goes before them.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Send all numbers to `tensorboard`, `mlflow` or `wandb` too. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DEFAULT_STORE = Path("softmask-runs")


def split_names(given: list[str] | None) -> list[str] | None:
    """Names with commas between; a sequence called by a path is taken as it is."""
    if not given:
        return None
    return [name.strip() for text in given for name in ([text] if ":" in text else text.split(",")) if name.strip()]


def parse_changes(changes: list[str] | None) -> dict[str, Any]:
    """`name=value` pairs; a value is JSON where it can be (3, 0.5, true, null), else text."""
    parsed: dict[str, Any] = {}
    for change in changes or []:
        name, equals, value = change.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set takes name=value, not {change!r}")
        try:
            parsed[name.strip()] = json.loads(value)
        except ValueError:
            parsed[name.strip()] = value
    return parsed


def with_precision(changes: list[str] | None, precision: str | None) -> list[str]:
    """`--precision X` is short for `--set precision=X`, which goes before it."""
    return [*([] if precision is None else [f"precision={precision}"]), *(changes or [])]


def all_changes(settings: str | None, changes: list[str] | None, method: str, sequence: str) -> dict[str, Any]:
    """What the settings file says, then what `--set` says."""
    found = {} if settings is None else settings_changes(settings, method, sequence)
    # In this order: of two names of one field, as drop1 and network.drop1, the later one counts.
    by_hand = parse_changes(changes)
    return {**{name: value for name, value in found.items() if name not in by_hand}, **by_hand}
