"""The command line: parse, call, print. One file a verb."""

from __future__ import annotations

import io
import signal
import sys
import warnings

import typer

import softmask
from softmask.cli.printing import note, problem
from softmask.cli.verbs import MARKUP, VerbGroup
from softmask.errors import ConfigError, SoftmaskError, UnknownName

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
    """Ctrl-C under another name: typer keeps KeyboardInterrupt to itself and says nothing."""


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
