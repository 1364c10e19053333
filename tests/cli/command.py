"""The command line inside the test's own process: what it prints and how it ends."""

from __future__ import annotations

import io
import json
import signal
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from softmask.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def errors(self) -> list[str]:
        """The lines that tell what went wrong."""
        return [line for line in self.err.splitlines() if line.startswith("error:")]


def softmask(*arguments: object) -> Ended:
    """`softmask ARGUMENTS`, as the installed command does it."""
    out, err = io.StringIO(), io.StringIO()
    usual = signal.getsignal(signal.SIGINT)
    code: int | str | None = 0
    with (
        mock.patch("sys.argv", ["softmask", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGINT, usual)
    assert isinstance(code, int), "every command ends with an exit code"
    return Ended(code, out.getvalue(), err.getvalue())


def tiny(method: str = "spg", *more: object) -> list[object]:
    """The options of a run that takes half a second."""
    options = ["run", "--method", method, "--sequence", "D-5", "--preset", "short", "--tasks", 2]
    return [*options, "--set", "width=0.0625", "--set", "epochs=2", *more]
