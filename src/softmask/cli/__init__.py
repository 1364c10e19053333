"""The command line: parse, call, print. One file a verb.

The file of a verb, and with it torch, is imported when the verb is called.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
import warnings
from typing import Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

import softmask
from softmask.cli.printing import note, problem
from softmask.errors import ConfigError, SoftmaskError, UnknownName

MARKUP: Final = "markdown"


class Verb(NamedTuple):
    """A function, or a `Typer` with verbs of its own."""

    place: str
    """`file:name`, the file beside this one."""
    summary: str
    """The first line of the verb's own help."""


VERBS = {
    "demo": Verb(
        "demo:demo",
        "Learn task after task with and without soft-masking, on built-in data, and write a report.",
    ),
    "run": Verb(
        "run:run_command",
        "Learn a sequence of tasks with one method. Run it again to continue after an interruption.",
    ),
    "grid": Verb(
        "grid:grid_command",
        "Run methods x sequences x seeds. Run it again, or several times at once: only missing cells are run.",
    ),
    "search": Verb(
        "search:search_command",
        "Search hyperparameters by mean validation accuracy (TPE). Run it again to continue.",
    ),
    "reproduce": Verb(
        "reproduce:reproduce_command",
        "Reproduce a table or figure of the paper: run or reuse the runs behind it, compare, and judge.",
    ),
    "report": Verb(
        "report:report_command",
        "Write all tables and figures of a store of runs to one HTML file that works offline.",
    ),
    "learn": Verb(
        "learn:learn",
        "Learn one more task from images; the first time, create the model. Old images are not needed.",
    ),
    "predict": Verb("predict:predict", "Name the class of each image, with the probabilities."),
    "inspect": Verb(
        "inspect:inspect",
        "Show the tasks, their accuracy when learned, importance per layer, free capacity and size.",
    ),
    "history": Verb(
        "history:history",
        "Show the history of a model: its events, and the accuracy of each task after each of them.",
    ),
    "export": Verb(
        "export:export",
        "Export one task of a model for other programs: plain weights, a torch.export program, ONNX.",
    ),
    "task": Verb(
        "task:app",
        "Rename or remove a task of a model. Example: `softmask task rename pets-model birds garden-birds`",
    ),
    "doctor": Verb(
        "doctor:doctor",
        "Show installed packages, threads and the datasets that are found, and run a short self-check.",
    ),
    "list": Verb("listing:app", "List methods, sequences and runs. Example: `softmask list methods`"),
    "analyse": Verb("analyse:app", "Show tables from stored runs. Example: `softmask analyse accuracy`"),
    "data": Verb("data:app", "List, check and fetch the data of the sequences."),
}


def load_verb(name: str) -> Any:
    """The verb with all its options, as typer makes it."""
    file, _, inside = VERBS[name].place.partition(":")
    thing = getattr(importlib.import_module(f"softmask.cli.{file}"), inside)
    around = typer.Typer(rich_markup_mode=MARKUP)
    if isinstance(thing, typer.Typer):
        around.add_typer(thing, name=name)
    else:
        around.command(name)(thing)
    return get_group(around).commands[name]


class VerbGroup(TyperGroup):
    """Knows names and summaries, which suffice for help and for suggestions; imports a verb when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=verb.summary) for name, verb in VERBS.items()}

    # Untyped: which package the types of `ctx` and of a command come from depends on typer's version.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_verb(name), rest


app = typer.Typer(
    name="softmask",
    cls=VerbGroup,
    help="Continual learning by soft-masking: learn task after task without catastrophic forgetting.\n\n"
    "Example: `softmask demo`",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softmask {softmask.__version__}")
        raise typer.Exit


@app.callback()
def whole_program(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Continual learning by soft-masking."""


RESUMING = ("demo", "run", "grid", "search", "reproduce")


class Interrupted(BaseException):
    """Raised on Ctrl-C, since typer swallows KeyboardInterrupt silently."""


def _interrupt(*_: object) -> None:
    raise Interrupted


def main() -> None:
    """Errors that a user can fix take one or two lines and no traceback; exit code 2 is wrong usage, 1 any other."""
    warnings.showwarning = lambda message, *_, **__: note(str(message))
    signal.signal(signal.SIGINT, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except (ConfigError, UnknownName) as error:
        problem(str(error))
        sys.exit(2)
    except SoftmaskError as error:
        problem(str(error))
        sys.exit(1)
    except OSError as error:  # a full disk, a folder without permission
        problem(f"{error.strerror or error}: {error.filename or 'while reading or writing'}")
        sys.exit(1)
    except Interrupted:
        resumes = any(verb in sys.argv[1:2] for verb in RESUMING)
        problem("interrupted; the same command continues where it stopped" if resumes else "interrupted")
        sys.exit(130)
