"""`softmask analyse`: tables from stored runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from softmask.analyses import ANALYSES, Analysis
from softmask.analyses.table import Table
from softmask.cli import options
from softmask.cli.printing import out, tell
from softmask.errors import SoftmaskError
from softmask.report.formats import FORMATS, WRITERS
from softmask.report.tables import print_table
from softmask.runs.store import Store


def _known_form(form: str) -> str:
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is none of {', '.join(FORMATS)}")
    return form


Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.", callback=_known_form)]
app = typer.Typer(help="Tables from stored runs. Example: `softmask analyse accuracy`", no_args_is_help=True)


def show_analysis(analysis: Analysis, store: Store, form: str) -> None:
    """Prints the table, and on standard error what was left out of it."""
    runs = list(store.runs())
    table = analysis(runs)
    for message in store.problems():
        tell(f"left out: {message}")
    if not table.rows:
        raise SoftmaskError(_why_empty(analysis, any(run.finished for run in runs), store))
    show_table(table, form)


def show_table(table: Table, form: str) -> None:
    if form == "text":
        print_table(table, out)
    else:
        written = WRITERS[form](table)
        typer.echo(written, nl=not written.endswith("\n"))


def _why_empty(analysis: Analysis, any_finished: bool, store: Store) -> str:
    if any_finished:
        return f"no run in {store.root} has what `{analysis.name}` shows: {analysis.summary}"
    return f"no finished run in {store.root}: `softmask run` makes one, `softmask list runs` shows them"


def _command(analysis: Analysis) -> Callable[..., None]:
    def with_runs(store: options.StorePath = options.DEFAULT_STORE, form: Format = "text") -> None:
        show_analysis(analysis, Store(store), form)

    def without_runs(form: Format = "text") -> None:
        show_table(analysis([]), form)

    command = with_runs if analysis.needs_runs else without_runs
    place = f" (the paper's {analysis.paper})" if analysis.paper else ""
    command.__doc__ = f"{analysis.summary[0].upper()}{analysis.summary[1:]}{place}.\n\n"
    command.__doc__ += f"Example: `softmask analyse {analysis.name} --format markdown`"
    return command


for _analysis in ANALYSES.values():
    app.command(_analysis.name)(_command(_analysis))
