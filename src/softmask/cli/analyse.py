"""`softmask analyse`: tables from stored runs."""

from __future__ import annotations

from typing import Annotated

import typer

from softmask.analyses.accuracy import accuracy
from softmask.analyses.network_size import network_size
from softmask.analyses.table import Table
from softmask.cli import options
from softmask.cli.printing import out, tell
from softmask.errors import SoftmaskError
from softmask.report.tables import FORMATS, as_json, as_markdown, print_table
from softmask.runs.store import Store


def _known_form(form: str) -> str:
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is none of {', '.join(FORMATS)}")
    return form


Format = Annotated[str, typer.Option("--format", help="text, markdown or json.", callback=_known_form)]
app = typer.Typer(help="Tables from stored runs. Example: `softmask analyse accuracy`", no_args_is_help=True)


@app.command("accuracy")
def accuracy_command(
    store: options.StorePath = options.DEFAULT_STORE,
    form: Format = "text",
) -> None:
    """ACC, FWT and BWT beside the paper's numbers. Example: `softmask analyse accuracy --format markdown`"""
    kept = Store(store)
    table = accuracy(kept.runs())
    for message in kept.problems():
        tell(f"left out: {message}")
    if not table.rows:
        raise SoftmaskError(f"no finished run in {store}: `softmask run` makes one, `softmask list runs` shows them")
    _show(table, form)


@app.command("network-size")
def network_size_command(form: Format = "text") -> None:
    """Learnable parameters of every method, beside the paper's. Example: `softmask analyse network-size`"""
    _show(network_size(), form)


def _show(table: Table, form: str) -> None:
    if form == "text":
        print_table(table, out)
    else:
        typer.echo(as_json(table) if form == "json" else as_markdown(table), nl=form == "json")
