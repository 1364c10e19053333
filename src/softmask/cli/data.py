"""`softmask data`: list, check and fetch the data of the sequences."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from softmask.cli import options
from softmask.cli.printing import err, out, print_json, problem, tell
from softmask.errors import DataError
from softmask.experiments.analyses.table import Cell, Table
from softmask.experiments.report.tables import print_table
from softmask.experiments.sequences import Download, sequence_facts
from softmask.experiments.sequences.checking import Checked, Sizes, check, find, names_to_check
from softmask.experiments.sequences.fetching import fetch as fetch_file

app = typer.Typer(help="List, check and fetch the data of the sequences.", no_args_is_help=True)
Names = Annotated[list[str] | None, typer.Argument(help="Sequences, as in `softmask list sequences` (default: all).")]


@app.command("list")
def list_data(names: Names = None, data: options.Data = None, as_json: options.AsJson = False) -> None:
    """List the data of each sequence: files needed, files found, source and licence terms. Example: `softmask data
    list`"""
    listed = [_listed(name, data) for name in names_to_check(names or [])]
    if as_json:
        print_json(listed)
        return
    sets: dict[str, list[dict[str, str]]] = {}
    for each in listed:
        sets.setdefault(each["needs"], []).append(each)
    for needs, of_set in sets.items():
        out.print(f"{', '.join(each['sequence'] for each in of_set)}\n  needs  {needs}", markup=False)
        for each in of_set:
            out.print(f"  found  {each['sequence']}: {each['found']}", markup=False)
        for what in ("home", "terms", "get"):
            if of_set[0][what]:
                out.print(f"  {what:6} {of_set[0][what]}", markup=False)


def _listed(name: str, data: Path | None) -> dict[str, str]:
    source = sequence_facts(name).source
    if source is None:
        return {"sequence": name, "needs": "nothing", "found": "built in", "home": "", "terms": "", "get": ""}
    get = f"softmask data fetch {name}" if source.download else source.obtain
    found = _found(name, data)
    return {
        "sequence": name,
        "needs": source.data,
        "found": found,
        "home": source.home,
        "terms": source.terms,
        "get": get,
    }


def _found(name: str, data: Path | None) -> str:
    try:
        return str(find(name, data) or "not known before it is loaded")
    except DataError:
        return "no" if data else "no: give --data or set SOFTMASK_DATA"


@app.command("check")
def check_data(names: Names = None, data: options.Data = None, as_json: options.AsJson = False) -> None:
    """Load the data, count the samples, compare with the paper's table, and list all problems.

    Without names, all datasets that are found are checked. Example: `softmask data check C-10 FE-10 --data DIR`
    """
    checked = check(names_to_check(names or []), data)
    wanted = [each for each in checked if names or each.found or each.sizes]
    problems = [line for each in wanted for line in each.problems]
    if not wanted:
        problems = [f"no data found in {data}" if data else "no data folder: give --data or set SOFTMASK_DATA"]
    if as_json:
        print_json([_plain(each) for each in checked])
    else:
        print_table(_table(checked), out)
        for note in dict.fromkeys(line for each in wanted for line in each.notes):
            tell(f"note: {note}")
    for line in problems:
        problem(line)
    if problems:
        raise typer.Exit(1)


def _table(checked: list[Checked]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for each in checked:
        state = "ready" if each.sizes else "problems" if each.found else "not found"
        if each.sizes and each.paper:
            state = "counts as in the paper" if each.sizes == each.paper else "counts differ from the paper"
        rows.append((each.name, state, *_counts(each)))
    return Table("Counts, ours / the paper's", ("sequence", "state", *Sizes._fields), rows)


def _counts(checked: Checked) -> list[str]:
    none = [None] * len(Sizes._fields)
    pairs = zip(checked.sizes or none, checked.paper or none, strict=True)
    return [" / ".join("-" if count is None else f"{count:,}" for count in pair) for pair in pairs]


def _plain(checked: Checked) -> dict[str, object]:
    return {
        **asdict(checked),
        "found": str(checked.found) if checked.found else None,
        "sizes": checked.sizes._asdict() if checked.sizes else None,
        "paper": checked.paper._asdict() if checked.paper else None,
    }


@app.command("fetch")
def fetch(
    names: Annotated[list[str], typer.Argument(help="Sequences whose data are downloaded, as in `C-10`.")],
    data: options.Data = None,
) -> None:
    """Download datasets from their owners, resuming interrupted downloads. Example: `softmask data fetch C-10 --data
    DIR`"""
    if data is None:
        raise DataError("name the folder to download to with --data or set SOFTMASK_DATA")
    downloads: dict[Download, str] = {}
    for name in names:
        source = sequence_facts(name).source
        if source is None:
            tell(f"{name}: needs no data")
        elif source.download is None:
            raise DataError(f"{name} cannot be fetched ({source.home or source.data}): {source.obtain or 'see there'}")
        else:
            downloads[source.download] = source.terms
    for download, terms in downloads.items():
        tell(f"{download.file} from {download.address}; terms: {terms}")
        out.print(str(_fetch_one(download, data)), markup=False)


def _fetch_one(download: Download, folder: Path) -> Path:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal) as bar:
        entry = bar.add_task(download.file, total=download.size)
        return fetch_file(download, folder, progress=lambda have, _: bar.update(entry, completed=have))
