"""`softmask search`: hyperparameters of a method on a sequence."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softmask.cli import options
from softmask.cli.printing import Progress, out, print_json, tell
from softmask.errors import SoftmaskError
from softmask.experiments.executors import ProcessExecutor
from softmask.experiments.report.files import check_figure, draw_history
from softmask.experiments.runs.settings_file import FoundSettings, write_settings
from softmask.experiments.sequences import sequence_facts
from softmask.learning.device import find_device

if TYPE_CHECKING:
    from softmask.experiments.runs.search import Search
    from softmask.experiments.runs.study import TrialRecord

DEFAULT_FOLDER = Path("softmask-search")
Folder = Annotated[Path, typer.Option("--store", help="Folder in which searches are stored, separate from runs.")]


def search_command(
    method: options.Method,
    sequence: options.Sequence,
    trials: Annotated[
        int, typer.Option(min=1, help="Total number of trials; a larger number continues a search.")
    ] = 20,
    preset: options.Preset = "paper",
    tasks: options.Tasks = None,
    seed: options.Seed = 1,
    data: options.Data = None,
    store: Folder = DEFAULT_FOLDER,
    study: Annotated[
        str | None, typer.Option(help="Where Optuna stores the trials: a journal file, or the URL of a database.")
    ] = None,
    change: options.Changes = None,
    network: options.Network = None,
    device: options.Device = "cpu",
    precision: options.Precision = None,
    dropout: Annotated[bool, typer.Option(help="Also search the two dropout rates of the network.")] = True,
    jobs: Annotated[
        int,
        typer.Option(
            "--jobs", "-j", min=1, help="Trials in parallel, one process each. Only `--jobs 1` is reproducible."
        ),
    ] = 1,
    out_file: Annotated[Path | None, typer.Option("--out", help="The settings file to write.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Plot of the search history, as .svg, .png or .pdf.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Search hyperparameters by mean validation accuracy (TPE). Run it again to continue.

    The first trial has the defaults. With `--tasks N` a trial learns the first N tasks, with the network of the whole
    sequence.

    Example: `softmask search --method ewc --sequence D-5 --preset short --trials 20`
    """
    from softmask.experiments.runs.search import Search, found_settings
    from softmask.experiments.runs.search_space import SearchPlan

    plan = SearchPlan(
        method=method,
        sequence=sequence,
        trials=trials,
        preset=preset,
        tasks=tasks,
        seed=seed,
        dropout=dropout,
        changes=options.parse_changes(options.with_precision(change, precision, network)),
    )
    search = Search.of(plan, store, study=study, data=data, device=device)
    written = out_file or search.folder / "settings.json"
    drawn = figure or (out_file.with_suffix(".svg") if out_file else search.folder / "history.svg")
    check_figure(drawn)  # now, not after hours
    find_device(device)
    search.begin()
    if jobs == 1:
        _work(search)
    else:
        _share(search, jobs)
    records = search.trials()
    found = found_settings(search, records)
    write_settings(written, found)
    draw_history(records, f"{method} on {sequence}", drawn)
    _show(records, found, written, drawn, as_json)


def _work(search: Search) -> None:
    """Runs one trial after the other, each with a progress display."""
    plan = search.plan
    tasks = plan.tasks or sequence_facts(plan.sequence).tasks
    epochs = plan.config({}).training.epochs

    def display(number: int) -> Progress:
        return Progress(f"trial {number}/{plan.total()} of {plan.method} on {plan.sequence}", tasks, epochs)

    search.work(on_trial_end=tell_trial, display=display)


def _share(search: Search, jobs: int) -> None:
    """Runs trials in several processes; one that dies is replaced and its trial continued."""
    tell(f"{jobs} processes share the trials; one line for each trial that has ended")
    failed = [outcome.error for outcome in ProcessExecutor(jobs=jobs).map(_work_quietly, [search] * jobs)]
    for error in filter(None, failed):
        raise SoftmaskError(error)


def _work_quietly(search: Search) -> None:
    search.work(on_trial_end=tell_trial)


def tell_trial(trial: TrialRecord) -> None:
    """Prints one line when a trial has ended."""
    from softmask.experiments.runs.search_space import settings_text

    value = "" if trial.value is None else f" {trial.value:.2f}"
    reason = f" ({trial.reason})" if trial.reason else ""
    tell(f"trial {trial.number}: {trial.state}{value}{reason}; {settings_text(trial.found)}")


def _show(trials: list[TrialRecord], found: FoundSettings, written: Path, drawn: Path, as_json: bool) -> None:
    from softmask.experiments.runs.search_space import settings_text

    summary: dict[str, Any] = found.found
    if as_json:
        listed = [asdict(trial) for trial in trials]
        files_and_trials = {"settings_file": str(written), "figure": str(drawn), "trials": listed}
        print_json({**asdict(found), **files_and_trials})
        return
    out.print(
        f"{summary['objective']}; {summary['trials']} trials, {summary['pruned']} pruned, {summary['failed']} failed"
    )
    out.print(f"best      {summary['value']:6.2f}   trial {summary['trial']}: {settings_text(found.changes())}")
    if summary["defaults"] is None:
        out.print("the trial with the defaults did not finish: no comparison")
    else:
        gain = summary["value"] - summary["defaults"]
        better = (
            f"{gain:.2f} points below the best" if gain > 0 else "no trial was better: the file contains the defaults"
        )
        out.print(f"defaults  {summary['defaults']:6.2f}   {better}")
    out.print(f"settings: {written} (for `softmask run --settings`), history: {drawn}")
