"""The forms in which any table can be had."""

from __future__ import annotations

from collections.abc import Callable

from softmask.experiments.analyses.table import Table
from softmask.experiments.report.html_table import as_html
from softmask.experiments.report.latex import as_latex
from softmask.experiments.report.tables import as_csv, as_json, as_markdown

WRITERS: dict[str, Callable[[Table], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
    "html": as_html,
    "json": as_json,
}
FORMATS = ("text", *WRITERS)
SUFFIXES = {"markdown": "md", "csv": "csv", "latex": "tex"}
"""What `softmask report --files` writes of every table."""
