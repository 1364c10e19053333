"""`softmask analyse`: tables from stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.printing import out, tell
from softmask.errors import SoftmaskError, UnknownName
from softmask.experiments.analyses import ANALYSES, Analysis, pruning, representation
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.analyses.pruning import RANKINGS, measure_pruning
from softmask.experiments.analyses.reading import DAMAGES, require_answers
from softmask.experiments.analyses.representation import measure_representation
from softmask.experiments.analyses.table import Table
from softmask.experiments.report.formats import FORMATS, WRITERS
from softmask.experiments.report.tables import print_table
from softmask.experiments.runs.store import Store, StoredRun


def _known_form(form: str) -> str:
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is none of {', '.join(FORMATS)}")
    return form


Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.", callback=_known_form)]
Methods = Annotated[list[str] | None, typer.Option("--methods", "-m", help="As in `spg,hat`; ONE stays in.")]
app = typer.Typer(help="Tables from stored runs. Example: `softmask analyse accuracy`", no_args_is_help=True)


def selected(store: Store, methods: list[str] | None, sequences: list[str] | None) -> list[StoredRun]:
    """The runs of these methods on these sequences, and of ONE, against which forward transfer is measured."""
    runs = list(store.runs())
    by_method = _wanted("method", methods, [run.config.method for run in runs])
    by_sequence = _wanted("sequence", sequences, [run.config.sequence for run in runs])
    return [run for run in runs if run.config.method in by_method | {REFERENCE} and run.config.sequence in by_sequence]


def _wanted(kind: str, given: list[str] | None, stored: Sequence[str]) -> set[str]:
    known = set(stored)
    names = options.split_names(given) or known
    for name in names:
        if name not in known:
            raise UnknownName(f"{kind} in this store", name, known)
    return set(names)


def show_analysis(analysis: Analysis, store: Store, runs: list[StoredRun], form: str) -> None:
    """Prints the table, and on standard error what was left out of it."""
    try:
        table = analysis(runs)
    except DAMAGES:
        table = analysis(_undamaged(runs))
    for message in store.problems():
        tell(f"left out: {message}")
    if not table.rows:
        raise SoftmaskError(_why_empty(analysis, any(run.finished for run in runs), store))
    show_table(table, form)


def _undamaged(runs: list[StoredRun]) -> list[StoredRun]:
    """Looked for only where an analysis stumbled: it means to read every run once more."""
    whole = []
    for run in runs:
        try:
            require_answers(run)
        except SoftmaskError as error:
            tell(f"left out: {run.path}: {error}")
        else:
            whole.append(run)
    return whole


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
    def with_runs(
        store: options.StorePath = options.DEFAULT_STORE,
        methods: Methods = None,
        sequences: options.Sequences = None,
        form: Format = "text",
    ) -> None:
        kept = Store(store)
        show_analysis(analysis, kept, selected(kept, methods, sequences), form)

    def without_runs(form: Format = "text") -> None:
        show_table(analysis([]), form)

    command = with_runs if analysis.needs_runs else without_runs
    place = f" (the paper's {analysis.paper})" if analysis.paper else ""
    command.__doc__ = f"{analysis.summary[0].upper()}{analysis.summary[1:]}{place}.\n\n"
    command.__doc__ += f"Example: `softmask analyse {analysis.name} --format markdown`"
    return command


def pruning_command(
    store: options.StorePath = options.DEFAULT_STORE,
    methods: Methods = None,
    sequences: options.Sequences = None,
    data: options.Data = None,
    ranked_over: Annotated[str, typer.Option(help="Rank over the whole `backbone` or within each `layer`.")] = RANKINGS[
        0
    ],
    form: Format = "text",
) -> None:
    """Accuracy of the first task without some of the backbone's parameters (the paper's table 6).

    Measures what is missing, for runs of SPG that kept the checkpoint of their first task (`--keep all`).

    Example: `softmask analyse pruning --ranked-over layer`
    """
    if ranked_over not in RANKINGS:
        raise typer.BadParameter(f"{ranked_over!r} is neither of {', '.join(RANKINGS)}", param_hint="--ranked-over")

    kept = Store(store)

    def measure(run: StoredRun) -> None:
        if measure_pruning(run, kept, data, ranked_over):
            tell(f"{run.path.name}: pruned and tested")

    runs = _measured(selected(kept, methods, sequences), pruning.METHODS, measure, "pruning")
    show_analysis(ANALYSES["pruning"], kept, runs, form)


def representation_command(
    store: options.StorePath = options.DEFAULT_STORE,
    methods: Methods = None,
    sequences: options.Sequences = None,
    data: options.Data = None,
    onto: Annotated[
        str | None, typer.Option(help="A sequence, learned undivided, or `rest`: what a run with --tasks left over.")
    ] = None,
    union: Annotated[bool, typer.Option("--union", help="HAT, WSN: features through all that any task uses.")] = False,
    form: Format = "text",
) -> None:
    """What the features are worth for other data, after each number of tasks (the paper's figures 4 and 6).

    Measures what is missing, for runs of NCL, SPG, HAT and WSN that kept all checkpoints (`--keep all`).

    Example: `softmask analyse representation --onto R-10`
    """

    kept = Store(store)

    def measure(run: StoredRun) -> None:
        if count := measure_representation(run, kept, data, onto, union):
            tell(f"{run.path.name}: {count} linear heads trained")

    runs = _measured(selected(kept, methods, sequences), representation.METHODS, measure, "representation")
    show_analysis(ANALYSES["representation"], kept, runs, form)


def _measured(
    runs: list[StoredRun], methods: tuple[str, ...], measure: Callable[[StoredRun], None], kind: str
) -> list[StoredRun]:
    """The runs, read anew. What cannot be measured is told, a line each; an error if that leaves nothing to show."""
    reasons = []
    for run in runs:
        if run.finished and run.config.method in methods:
            try:
                measure(run)
            except UnknownName:
                raise  # a slip in the command, not in the run
            except SoftmaskError as error:
                reasons.append(str(error))
    measured = [StoredRun(run.path) for run in runs]
    if reasons and not any(run.events(kind) for run in measured):
        raise SoftmaskError(reasons[0] + (f" (and {len(reasons) - 1} more runs)" if len(reasons) > 1 else ""))
    for reason in reasons:
        tell(f"left out: {reason}")
    return measured


OWN: dict[str, Callable[..., None]] = {"pruning": pruning_command, "representation": representation_command}
for _analysis in ANALYSES.values():
    app.command(_analysis.name)(OWN.get(_analysis.name) or _command(_analysis))
