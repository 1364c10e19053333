"""From a store to files: the page, and on request every table and figure apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from softmask.experiments.analyses import ANALYSES
from softmask.experiments.analyses.reading import Reading
from softmask.experiments.analyses.table import Table
from softmask.experiments.report.charts import Chart
from softmask.experiments.report.drawing import write_figure
from softmask.experiments.report.figures import all_figures
from softmask.experiments.report.formats import SUFFIXES, WRITERS
from softmask.experiments.report.html import report_html
from softmask.storage.state_file import replace_file

Watch = Callable[[str], None]


def make_report(reading: Reading, watch: Watch | None = None) -> tuple[str, dict[str, Table], dict[str, list[Chart]]]:
    """The page, and what it was made of."""
    tables: dict[str, Table] = {}
    for name, analysis in ANALYSES.items():
        if watch is not None:
            watch(name)
        tables[name] = analysis(reading.runs)
    figures = all_figures(reading.runs)
    return report_html(reading, tables, figures), tables, figures


def write_text(path: Path, text: str) -> None:
    """Written beside the target and renamed: a kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    try:
        aside.write_text(text, encoding="utf-8")
        replace_file(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_files(
    folder: Path, tables: dict[str, Table], figures: dict[str, list[Chart]], watch: Watch | None = None
) -> int:
    """Every table as Markdown, CSV and LaTeX, every figure as PNG, SVG and PDF; returns how many files."""
    count = 0
    for name, table in tables.items():
        if table.rows:
            for form, suffix in SUFFIXES.items():
                write_text(folder / "tables" / f"{name}.{suffix}", WRITERS[form](table))
                count += 1
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for chart in (chart for each in figures.values() for chart in each):
        if watch is not None:
            watch(chart.name)
        count += len(write_figure(chart, folder / "figures"))
    return count
