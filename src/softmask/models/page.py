"""A model as one self-contained HTML page: tasks, kept samples, history, importance."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from softmask.models.history import History
from softmask.models.inspection import DRIFT_COLUMNS, TASK_COLUMNS, Inspection, drift_rows, summary_line, task_rows

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0 0 2rem; } th, td { padding: .25rem .8rem .25rem 0; text-align: left; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
"""


def page(found: Inspection, history: History) -> str:
    parts = [f"<h1>{escape(found.path)}</h1><p>{escape(summary_line(found))}</p>"]
    parts.append(_table("Tasks", TASK_COLUMNS, task_rows(found.tasks)))
    if found.drift:
        parts.append(_table("Kept samples", DRIFT_COLUMNS, drift_rows(found.drift)))
    if history.curves:
        parts.append(f'<h2>Accuracy over time</h2><img alt="Accuracy of each task over time" src="{_plot(history)}">')
    parts.append(_table("History", ("time", "event", "task"), [(e.time, e.kind, e.task) for e in history.events]))
    if found.importance:
        layers = [(layer, f"{mean:.3f}") for layer, mean in found.importance.items()]
        parts.append(_table("Mean importance", ("layer", "importance"), layers))
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(found.path)}</title>'
    return f"{head}<style>{STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"


def _table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f"<h2>{escape(caption)}</h2><table><tr>{head}</tr>\n{body}</table>"


def _plot(history: History) -> str:
    """As an image, so that names of tasks cannot inject anything into the page."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "history.svg"
        history.draw(file)
        return "data:image/svg+xml;base64," + base64.b64encode(file.read_bytes()).decode()
