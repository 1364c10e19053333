"""`softmask list`: methods, sequences and runs."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.printing import out, print_json, tell
from softmask.experiments.analyses.grouping import changes, sequence_label, training_name
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import as_json as table_as_json
from softmask.experiments.report.tables import cell_text, print_table
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import SEQUENCES, sequence_facts
from softmask.learning.method import FAMILIES, BackboneMismatch, Method
from softmask.learning.registry import METHODS
from softmask.learning.settings import as_text, settings_card, shown

ROWS_TO_DRAW = 500

app = typer.Typer(help="List methods, sequences and runs. Example: `softmask list methods`", no_args_is_help=True)


def _print(table: Table, as_json: bool) -> None:
    if as_json:
        typer.echo(table_as_json(table))
    elif len(table.rows) > ROWS_TO_DRAW:
        _print_lines(table)
    else:
        print_table(table, out)


def _print_lines(table: Table) -> None:
    """Prints plain lines: rich takes very long to lay out thousands of rows."""
    lines = [table.columns, *(tuple(map(cell_text, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    typer.echo("\n".join([table.caption, *padded]))


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Print the card of one method and its settings.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List the methods, one line each; with a name, show its card and settings. Example: `softmask list methods spg`"""
    if name is not None:
        _print_card(name, as_json)
        return
    columns = ("name", "in the paper", "old data kept", "grows with tasks", "other data", "backbone", "idea")
    rows: dict[str, list[tuple[Cell, ...]]] = {family: [] for family in FAMILIES}
    for name in METHODS.names():
        method, idea = METHODS.load(name), METHODS.entry(name).card.partition("\n")[0]
        uses = method.uses(method.Settings())
        used = (uses.old_data, uses.growth, uses.other_data)
        rows[method.family].append((name, method.title, *used, needed(method), idea))
    if as_json:
        listed = [(family, *row) for family, members in rows.items() for row in members]
        _print(Table("Methods", ("family", *columns), listed), as_json)
        return
    for family, members in rows.items():
        if members:
            filled = [tuple(cell or None for cell in row) for row in members]
            _print(Table(f"{family.capitalize()}: {FAMILIES[family]}", columns, filled), as_json)


def needed(method: type[Method]) -> str:
    """The kind of backbone that a method needs."""
    try:
        method.require_fitting("resnet18")
    except BackboneMismatch:
        return "chain of layers"
    return "weights of layers" if method.needs_layers else "any"


def _print_card(name: str, as_json: bool) -> None:
    card, method = METHODS.entry(name).card, METHODS.load(name)
    settings = settings_card(method.Settings)
    if as_json:
        listed = [dataclasses.asdict(each) for each in settings]
        dropout = {"default rates": method.default_dropout, "source": method.dropout_source}
        print_json({"name": name, "in the paper": method.title, "card": card, "settings": listed, "dropout": dropout})
        return
    out.print(card)
    if settings:
        first = settings[0]
        out.print(f"\nSettings, as in `--set settings.{first.name}={shown(first.default)}`:\n\n{as_text(settings)}")
    rates = (
        "the rates of the sequence" if (own := method.default_dropout) is None else f"drop1={own[0]:g} drop2={own[1]:g}"
    )
    out.print(f"\nDropout: {rates} by default ({method.dropout_source})")


@app.command()
def sequences(as_json: options.AsJson = False) -> None:
    """List the task sequences and the data they need. Example: `softmask list sequences`"""
    rows: list[tuple[Cell, ...]] = []
    for name in SEQUENCES.names():
        facts = sequence_facts(name)
        kind = "similar" if facts.similar else "dissimilar"
        rows.append((name, facts.tasks, facts.classes, kind, facts.data or "built in", facts.description))
    _print(Table("Task sequences", ("name", "tasks", "classes", "tasks are", "data", "what"), rows), as_json)


@app.command()
def runs(store: options.StorePath = options.DEFAULT_STORE, as_json: options.AsJson = False) -> None:
    """List the runs in a store and their progress. Example: `softmask list runs --store softmask-runs`"""
    found = list(Store(store).look())
    rows = [_run_row(run) for run in found if isinstance(run, StoredRun)]
    columns = ("sequence", "method", "training", "changed", "seed", "state", "tasks done", "ACC", "folder")
    _print(Table(f"Runs in {store}", columns, rows), as_json)
    for problem in found:
        if isinstance(problem, str):
            tell(f"left out: {problem}")
    if not rows:
        tell("no run there yet: `softmask run` makes one")


def _run_row(run: StoredRun) -> tuple[Cell, ...]:
    config, summary = run.config, run.known_summary()
    seeds = config.seeds
    alike = len({seeds.order, seeds.split, seeds.init, seeds.batches}) == 1
    return (
        sequence_label(config),
        config.method,
        training_name(config.training),
        changes(config),
        seeds.order if alike else "mixed",
        summary.status,
        summary.tasks,
        summary.accuracy,
        run.path.name,
    )
