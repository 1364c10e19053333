"""`softmask analyse`: tables from stored runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from softmask.cli import options
from softmask.cli.printing import out, tell
from softmask.errors import SoftmaskError, UnknownName, escaped
from softmask.experiments.analyses import ANALYSES, Analysis
from softmask.experiments.analyses.comparisons import BASE
from softmask.experiments.analyses.grouping import REFERENCE
from softmask.experiments.analyses.pruning import METHODS as PRUNING_METHODS
from softmask.experiments.analyses.pruning import RANKINGS, measure_pruning
from softmask.experiments.analyses.reading import DAMAGES, require_answers
from softmask.experiments.analyses.representation import METHODS as REPRESENTATION_METHODS
from softmask.experiments.analyses.representation import REST, measure_representation
from softmask.experiments.analyses.table import Table
from softmask.experiments.paper import PAPER, read_published
from softmask.experiments.report.tables import FORMATS, WRITERS, print_table
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.sequences import SEQUENCES


def _known_form(form: str) -> str:
    if form not in FORMATS:
        raise typer.BadParameter(f"{form!r} is none of {', '.join(FORMATS)}")
    return form


Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.", callback=_known_form)]
Methods = Annotated[list[str] | None, typer.Option("--methods", "-m", help="As in `spg,hat`; ONE is always included.")]
app = typer.Typer(help="Show tables from stored runs. Example: `softmask analyse accuracy`", no_args_is_help=True)


def selected(
    store: Store, methods: list[str] | None, sequences: list[str] | None, base: str = REFERENCE
) -> list[StoredRun]:
    """The runs of these methods on these sequences, of ONE, which forward transfer needs, and of the base."""
    runs = list(store.runs())
    by_method = _wanted("method", methods, [run.config.method for run in runs])
    by_sequence = _wanted("sequence", sequences, [run.config.sequence for run in runs])
    shown_methods = by_method | {REFERENCE, base}
    return [run for run in runs if run.config.method in shown_methods and run.config.sequence in by_sequence]


def _wanted(kind: str, given: list[str] | None, stored: Sequence[str]) -> set[str]:
    known = set(stored)
    names = options.split_names(given) or known
    for name in names:
        if name not in known:
            raise UnknownName(f"{kind} in this store", name, known)
    return set(names)


def chosen_format(form: str, as_json: bool) -> str:
    """`--json` is the same as `--format json`."""
    return "json" if as_json else form


def show_analysis(analysis: Analysis, store: Store, runs: list[StoredRun], form: str, **more: Any) -> None:
    """Prints the table, and on standard error the runs that were left out."""
    try:
        table = analysis(runs, **more)
    except DAMAGES:
        table = analysis(_undamaged(runs), **more)
    for message in store.problems():
        tell(f"left out: {message}")
    if not table.rows:
        raise SoftmaskError(_why_empty(analysis, any(run.finished for run in runs), store))
    show_table(table, form)


def _undamaged(runs: list[StoredRun]) -> list[StoredRun]:
    """Only after an analysis failed: it reads every run again."""
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
        written = escaped(WRITERS[form](table))
        typer.echo(written, nl=not written.endswith("\n"))


def _why_empty(analysis: Analysis, any_finished: bool, store: Store) -> str:
    if any_finished:
        return f"no run in {store.root} has data for `{analysis.name}`: {analysis.summary}"
    return f"no finished run in {store.root}: `softmask run` makes one, `softmask list runs` shows them"


Published = Annotated[
    Path | None,
    typer.Option(help="CSV of published results to show instead of the paper's: method, sequence, ACC, FWT, BWT."),
]
Against = Annotated[str, typer.Option(help="The baseline that is subtracted from each method.")]


def _command(analysis: Analysis) -> Callable[..., None]:
    def plain(
        store: options.StorePath = options.DEFAULT_STORE,
        methods: Methods = None,
        sequences: options.Sequences = None,
        form: Format = "text",
        as_json: options.AsJson = False,
    ) -> None:
        run_store = Store(store)
        show_analysis(analysis, run_store, selected(run_store, methods, sequences), chosen_format(form, as_json))

    def with_published(
        store: options.StorePath = options.DEFAULT_STORE,
        methods: Methods = None,
        sequences: options.Sequences = None,
        published: Published = None,
        form: Format = "text",
        as_json: options.AsJson = False,
    ) -> None:
        run_store = Store(store)
        source = read_published(published) if published else PAPER
        runs = selected(run_store, methods, sequences)
        show_analysis(analysis, run_store, runs, chosen_format(form, as_json), published=source)

    def with_base(
        store: options.StorePath = options.DEFAULT_STORE,
        methods: Methods = None,
        sequences: options.Sequences = None,
        against: Against = BASE,
        form: Format = "text",
        as_json: options.AsJson = False,
    ) -> None:
        run_store = Store(store)
        runs = selected(run_store, methods, sequences, against)
        if not any(run.config.method == against for run in runs):
            raise UnknownName("method in this store", against, {run.config.method for run in runs}, "")
        show_analysis(analysis, run_store, runs, chosen_format(form, as_json), against=against)

    def without_runs(form: Format = "text", as_json: options.AsJson = False) -> None:
        show_table(analysis([]), chosen_format(form, as_json))

    by_option: dict[str, Callable[..., None]] = {"published": with_published, "against": with_base, "": plain}
    command = by_option[analysis.option] if analysis.needs_runs else without_runs
    place = f" (the paper's {analysis.paper})" if analysis.paper else ""
    command.__doc__ = f"{analysis.summary[0].upper()}{analysis.summary[1:]}{place}.\n\n"
    command.__doc__ += f"Example: `softmask analyse {analysis.name} --format markdown`"
    return command


def pruning_command(
    store: options.StorePath = options.DEFAULT_STORE,
    methods: Methods = None,
    sequences: options.Sequences = None,
    data: options.Data = None,
    ranked_over: Annotated[
        str, typer.Option(help="Rank parameters over the whole `backbone` or within each `layer`.")
    ] = "backbone",
    form: Format = "text",
    as_json: options.AsJson = False,
) -> None:
    """Accuracy on the first task after pruning by importance (the paper's table 6).

    Measures missing results, for runs of SPG that kept the checkpoint of their first task (`--keep all`).

    Example: `softmask analyse pruning --ranked-over layer`
    """
    if ranked_over not in RANKINGS:
        raise typer.BadParameter(f"{ranked_over!r} is neither of {', '.join(RANKINGS)}", param_hint="--ranked-over")

    run_store = Store(store)

    def measure(run: StoredRun) -> None:
        if measure_pruning(run, run_store, data, ranked_over):
            tell(f"{run.path.name}: pruned and tested")

    runs = _measured(selected(run_store, methods, sequences), PRUNING_METHODS, measure, "pruning")
    show_analysis(ANALYSES["pruning"], run_store, runs, chosen_format(form, as_json))


def representation_command(
    store: options.StorePath = options.DEFAULT_STORE,
    methods: Methods = None,
    sequences: options.Sequences = None,
    data: options.Data = None,
    onto: Annotated[
        str | None,
        typer.Option(
            help="A sequence, used as one task, or `rest`: the classes that a run with --tasks did not learn."
        ),
    ] = None,
    union: Annotated[bool, typer.Option("--union", help="For HAT and WSN: use the features of all tasks.")] = False,
    form: Format = "text",
    as_json: options.AsJson = False,
) -> None:
    """Quality of the features for another dataset, after each task (the paper's figures 4 and 6).

    Measures missing results, for runs of NCL, SPG, HAT and WSN that kept all checkpoints (`--keep all`).

    Example: `softmask analyse representation --onto R-10`
    """
    if onto not in (None, REST):
        SEQUENCES.entry(onto)
    run_store = Store(store)

    def measure(run: StoredRun) -> None:
        if count := measure_representation(run, run_store, data, onto, union):
            tell(f"{run.path.name}: {count} linear heads trained")

    runs = _measured(selected(run_store, methods, sequences), REPRESENTATION_METHODS, measure, "representation")
    show_analysis(ANALYSES["representation"], run_store, runs, chosen_format(form, as_json))


def _measured(
    runs: list[StoredRun], methods: tuple[str, ...], measure: Callable[[StoredRun], None], kind: str
) -> list[StoredRun]:
    """The runs, read again. Runs that cannot be measured are named on standard error; an error if none is left."""
    reasons = []
    for run in runs:
        if run.finished and run.config.method in methods:
            try:
                measure(run)
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
