"""`softmask report`: a store as one HTML page, and its tables and figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softmask.cli import options
from softmask.cli.printing import err, out, tell
from softmask.errors import SoftmaskError
from softmask.experiments.analyses.reading import read_store
from softmask.experiments.report.files import write_files
from softmask.experiments.report.html import make_report
from softmask.experiments.runs.store import Store
from softmask.storage.state_file import write_text


def report_command(
    store: Annotated[Path, typer.Argument(envvar="SOFTMASK_STORE", help="Folder of runs.")] = options.DEFAULT_STORE,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    files: Annotated[
        Path | None,
        typer.Option(help="Also write all tables (Markdown, CSV, LaTeX) and figures (PNG, SVG, PDF) to this folder."),
    ] = None,
) -> None:
    """Write all tables and figures of a store of runs to one HTML file that works offline.

    Example: `softmask report softmask-runs -o report.html --files report-files`
    """
    if not store.is_dir():
        raise SoftmaskError(f"there is no folder {store}: name the store of the runs")
    write_report(store, output, files)


def write_report(store: Path, output: Path, files: Path | None = None) -> None:
    with err.status("reading runs", spinner="line") as status:
        reading = read_store(Store(store), lambda count: status.update(f"reading runs: {count}"))
        page, tables, figures = make_report(reading, lambda name: status.update(f"analysing: {name}"))
        write_text(output, page)
        written = write_files(files, tables, figures, lambda name: status.update(f"drawing: {name}")) if files else 0
    for folder, reason in reading.left_out:
        tell(f"left out: {folder}: {reason}")
    size = f"{len(reading.runs)} runs, {len(page.encode()) / 1e6:.1f} MB"
    out.print(f"report: {output} ({size})" + (f", {written} files in {files}" if files else ""))
