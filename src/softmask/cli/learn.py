"""`softmask learn`: one more task for the model in a folder."""

from __future__ import annotations

import dataclasses
import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.cli import options
from softmask.cli.printing import Progress, out, print_json, problem, tell
from softmask.core import RetentionError
from softmask.errors import ConfigError, SoftmaskError, choices
from softmask.learning.training import Training
from softmask.models import ContinualModel
from softmask.models.folder import ModelFolder
from softmask.models.learner import new_settings
from softmask.storage.lease import FolderBusyError, Lease

FIELDS = [field.name for field in dataclasses.fields(Training)]
FORGOTTEN = 3
"""The exit code of `learn --retain` where an earlier task was forgotten."""
PROBE_OF_A_GATE = 100
MADE_BY_LEARN = "made by learn"
"""The entry in the history of a model that `learn` created for its first task."""
Model = Annotated[Path, typer.Argument(help="Folder of the model.")]
OwnNetwork = Annotated[
    str | None,
    typer.Option("--network", help="`alexnet`, `resnet18`, `vit-tiny`, `mlp`, or your own `module:function`."),
]


def learn(
    model: Model,
    images: Annotated[Path, typer.Argument(help="Folder with a folder of images for each class.")],
    task: Annotated[str | None, typer.Option(help="Name of the task (default: the name of the folder).")] = None,
    val: Annotated[Path | None, typer.Option(help="Images for validation; otherwise a tenth is held out.")] = None,
    network: OwnNetwork = None,
    size: Annotated[int | None, typer.Option(min=1, help="Side of the images in pixels, for a new model (32).")] = None,
    channels: Annotated[int | None, typer.Option(min=1, max=3, help="1 grey or 3 colour, for a new model.")] = None,
    width: Annotated[float | None, typer.Option(help="Width of the network as a factor, for a new model (1).")] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="Learning method, for a new model (lwf).")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed, for a new model (1).")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="`lr`, `epochs`, ...; for a new model also `settings.NAME`. May be repeated."),
    ] = None,
    probe: Annotated[
        int | None,
        typer.Option(min=0, help="Keep N samples to measure forgetting (default: 0; with --retain 100).", metavar="N"),
    ] = None,
    retain: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Undo the task, with exit code 3, if an earlier one keeps less than this share."
        ),
    ] = None,
    search_minutes: Annotated[
        float | None,
        typer.Option(min=0, help="With --retain: retry with more protection for at most M minutes.", metavar="M"),
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="The images are more of a known task; new classes are added to it.")
    ] = False,
    mean: Annotated[
        str | None, typer.Option(help="Mean of the pixels (0 to 1), as in 0.5,0.5,0.5, for a new model (ImageNet's).")
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Standard deviation of the pixels, in the form of --mean, for a new model.")
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="For a new model: the network is pretrained; protect its features.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="State file (or folder of transformers) of a pretrained network, for a new model."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse images that cannot be read instead of skipping them.")
    ] = False,
    device: options.Device = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Learn one more task from images; the first time, create the model. Old images are not needed.

    If it is killed, the model is unchanged. Example: `softmask learn pets-model photos/cats-vs-dogs`
    """
    changes, settings = split_changes(options.parse_changes(change))
    if channels not in (None, 1, 3):
        raise typer.BadParameter("images have 1 channel (grey) or 3 channels (colour)", param_hint="--channels")
    if Path(os.path.abspath(model)).is_relative_to(os.path.abspath(images)):
        raise typer.BadParameter("the model must lie outside the folder of images, where it would count as a class")
    is_new = not ModelFolder(model).exists()
    side = wanted_shape(size, channels, None if is_new else ModelFolder(model).read_config().input_shape)
    wanted: dict[str, Any] = {"network": network, "input_shape": side, "width": width, "method": method, "seed": seed}
    wanted |= {"pretrained": pretrained or None, "weights": weights}
    wanted |= {"mean": split_numbers("--mean", mean), "std": split_numbers("--std", std)}
    opened = open_or_create(model, {k: v for k, v in wanted.items() if v is not None}, settings, device)
    name = task or Path(os.path.abspath(images)).name
    try:
        with Progress(name, len(opened.tasks) + 1, first=len(opened.tasks)) as progress:
            probe_size = probe if probe is not None else PROBE_OF_A_GATE if retain is not None else 0
            facts = opened.learn(
                name,
                images,
                val,
                training=changes,
                probe=probe_size,
                retain=retain,
                search_minutes=search_minutes,
                more=more,
                strict=strict,
                watch=progress,
            )
    except RetentionError as error:
        problem(f"{name} was learned and undone: {error}")
        tell(f"{model} is unchanged; try a lower learning rate (--set lr=...) or more protection")
        raise typer.Exit(FORGOTTEN) from None
    except BaseException:
        with suppress(SoftmaskError):  # the first error is the one to report
            report_state(ModelFolder(model), name, is_new)
        raise
    if as_json:
        print_json(dataclasses.asdict(facts))
        return
    assert facts.accuracy is not None  # it was just learned
    out.print(
        f"{name}: {len(facts.classes)} classes, {facts.samples} training images, {facts.epochs} epochs, "
        f"validation accuracy {100 * facts.accuracy:.1f} %"
    )
    if facts.free_capacity is not None:
        out.print(f"free capacity: {100 * facts.free_capacity:.0f} % (one minus the mean importance)")
    _print_drift(opened, None if more else name)
    out.print(f"the model in {model} has learned {len(opened.tasks)} tasks: {', '.join(opened.tasks)}")


def _print_drift(model: ContinualModel, new: str | None) -> None:
    """Prints the accuracy of earlier tasks with kept samples, now and when they were learned.

    A task that was trained further (`--more`) is one of them: then no task is `new`.
    """
    if not any(task.probe for task in model.config.tasks if task.name != new):
        return
    for drift in model.inspect(probe=True).drift:
        if drift.task != new:
            then, now = (f"{100 * share:.1f} %" for share in drift.curve)
            out.print(f"{drift.task}: accuracy {now} on {drift.samples} kept samples, {then} when it was learned")


def split_numbers(option: str, given: str | None) -> tuple[float, ...] | None:
    """Comma-separated numbers."""
    try:
        return None if given is None else tuple(float(each) for each in given.split(","))
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not a list of numbers, as in 0.5,0.5,0.5", param_hint=option) from None


def wanted_shape(size: int | None, channels: int | None, known: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    """Missing values are those of the existing model, or the defaults."""
    if size is None and channels is None:
        return None
    usual = known if known is not None and len(known) == 3 else (3, 32, 32)
    return channels or usual[0], size or usual[1], size or usual[2]


def report_state(folder: ModelFolder, task: str, is_new: bool) -> None:
    known = [each.name for each in folder.read_config().tasks]
    if is_new and not known and _removed_without_tasks(folder):
        tell("nothing was learned and no model was created; run the same command to start again")
    elif task not in known:
        tell(f"nothing was learned: {folder.path} is unchanged; run the same command to start the task again")


def _removed_without_tasks(folder: ModelFolder) -> bool:
    """Removes a model without tasks, so that the next attempt may have other settings; not while it is in use."""
    try:
        with Lease(folder.path):
            untaught = not folder.read_config().tasks
            if untaught:
                folder.remove()
            return untaught
    except FolderBusyError:
        return False


def _removed_leftover(path: Path, wanted: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Removes a model without tasks that a killed `learn` with other settings left behind; returns whether it did.

    A model that was created on purpose stays, even without tasks.
    """
    folder = ModelFolder(path)
    config = folder.read_config()
    known = config.to_dict()
    same = all(known.get(name) == value for name, value in wanted.items())
    same = same and config.settings == new_settings(config.method, settings)
    if config.tasks or same or not folder.has_noted(MADE_BY_LEARN) or not _removed_without_tasks(folder):
        return False
    tell(f"{path} was created with other settings and has no tasks: created again")
    return True


def open_or_create(path: Path, wanted: dict[str, Any], settings: dict[str, Any], device: str = "cpu") -> ContinualModel:
    """Options for a new model must not contradict an existing one."""
    network = wanted.get("network")
    options.allow_own_code(network)
    if not ModelFolder(path).exists() or _removed_leftover(path, wanted, settings):
        created = ContinualModel.create(path, settings=settings, device=device, **wanted)
        ModelFolder(path).note({"kind": MADE_BY_LEARN})
        return created
    opened = ContinualModel.open(path, network, device=device)
    if wanted.pop("weights", None) is not None:
        raise ConfigError(f"{path} is a model already: weights are loaded when a model is created")
    known = opened.config.to_dict()
    for name, value in wanted.items():
        if known[name] != value:
            raise ConfigError(f"{path} has {name} {known[name]}, not {value}: this is fixed when a model is created")
    for name, value in settings.items():
        if opened.config.settings.get(name) != value:
            raise ConfigError(f"settings.{name} is fixed when a model is created")
    return opened


def split_changes(changes: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The changes of the training, and those of the method's settings."""
    training: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in changes.items():
        section, _, key = name.rpartition(".")
        if section == "settings":
            settings[key] = value
        elif section in ("", "training") and key in FIELDS:
            training[key] = value
        else:
            raise ConfigError(f"there is no field {name!r}{choices(key, [*FIELDS, 'settings.*'])}")
    return training, settings
