"""Options that several verbs share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.errors import ConfigError
from softmask.experiments.runs.config import network_name
from softmask.experiments.runs.settings_file import settings_changes
from softmask.learning.backbones import KINDS, is_function, trust_network
from softmask.storage.reading import parse_json

Method = Annotated[str, typer.Option("--method", "-m", help="A method: see `softmask list methods`.")]
Sequence = Annotated[str, typer.Option("--sequence", "-s", help="A task sequence: see `softmask list sequences`.")]
Sequences = Annotated[list[str] | None, typer.Option("--sequences", "-s", help="As in `D-5,R-10`.")]
PRESET_HELP = (
    "`paper`, `compare` (similar accuracy at less cost), `short` (for a CPU) or `gpm` (as GPM's authors, for C-10-GPM)"
)
Preset = Annotated[str, typer.Option("--preset", "-p", help=f"How to train: {PRESET_HELP}.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of class order, split, initial weights and batches.")]
Tasks = Annotated[int | None, typer.Option("--tasks", min=1, help="Use only the first N tasks.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="SOFTMASK_DATA", help="Folder with the datasets, for sequences that need one."),
]
Device = Annotated[
    str, typer.Option("--device", help="Device: `cpu`, `cuda`, `cuda:1`, or `auto` for a GPU if there is one.")
]
StorePath = Annotated[Path, typer.Option("--store", envvar="SOFTMASK_STORE", help="Folder in which runs are stored.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change one field, as in `--set epochs=3 --set network.width=0.5`. May be repeated."),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision", help="Precision of the training step: `fp32`, or `bf16`, which is faster where it is supported."
    ),
]
Network = Annotated[
    str | None,
    typer.Option("--network", help=f"The backbone: {', '.join(KINDS)}. Your own code runs only if you name it here."),
]
Settings = Annotated[
    str | None,
    typer.Option(
        "--settings",
        help="Settings found by a search: a file, a folder DIR/SEQUENCE/METHOD.json, `paper` for those published "
        "by its authors, or `built-in` for D-5 and R-10. `--set` overrides them.",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also log to `tensorboard`, `mlflow` or `wandb`. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ChangedData = Annotated[
    str,
    typer.Option(
        "--changed-data",
        help="If the data of a finished run have changed: `refuse`, `rerun` (moves the old run aside) or `accept`.",
    ),
]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads per run. Two runs in parallel are faster than one with two threads.")
]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="Epochs between checkpoints, the most that a kill can lose.")]
Keep = Annotated[str, typer.Option(help="Which task checkpoints to keep: `last` or `all`.")]
DEFAULT_STORE = Path("softmask-runs")
LONGEST = 1_000


def check_keep(keep: str) -> None:
    if keep not in ("last", "all"):
        raise typer.BadParameter(f"{keep!r} is neither `last` nor `all`", param_hint="--keep")


def check_threads(threads: int) -> None:
    if threads > (cores := os.cpu_count() or 1):
        raise typer.BadParameter(f"{threads} is more than the {cores} cores of this machine", param_hint="--threads")


def split_names(given: list[str] | None) -> list[str] | None:
    """Comma-separated names; a sequence given by a path is not split."""
    if not given:
        return None
    return [name.strip() for text in given for name in ([text] if ":" in text else text.split(",")) if name.strip()]


def parse_changes(changes: list[str] | None) -> dict[str, Any]:
    """`name=value` pairs; a value is JSON where it can be (3, 0.5, true, null), else text."""
    parsed: dict[str, Any] = {}
    for change in changes or []:
        name, equals, value = change.partition("=")
        if not equals or not name:
            raise ConfigError(f"--set takes name=value, not {change[:200]!r}")
        if len(value) > LONGEST:
            raise ConfigError(f"--set {name[:200]}: a value has at most {LONGEST:,} characters")
        try:
            parsed[name.strip()] = parse_json(value)
        except ValueError:
            parsed[name.strip()] = value
    allow_own_code(network_name(parsed))
    return parsed


def allow_own_code(network: str | None) -> None:
    """Naming a function is permission to run it. It may be in the current folder, as with `python -m`."""
    if network is not None and is_function(network):
        trust_network(network)
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())


def with_precision(changes: list[str] | None, precision: str | None, network: str | None = None) -> list[str]:
    """`--precision X` is short for `--set precision=X`, which overrides it; `--network X` for `network.name=X`."""
    shorts = {"precision": precision, "network.name": network}
    return [*(f"{name}={value}" for name, value in shorts.items() if value is not None), *(changes or [])]


def all_changes(settings: str | None, changes: list[str] | None, method: str, sequence: str) -> dict[str, Any]:
    """The changes of the settings file, then those of `--set`."""
    found = {} if settings is None else settings_changes(settings, method, sequence)
    # In this order: if a field is given under two names, such as drop1 and network.drop1, the later one counts.
    by_hand = parse_changes(changes)
    return {**{name: value for name, value in found.items() if name not in by_hand}, **by_hand}
