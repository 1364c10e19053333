"""A model as one self-contained HTML page: tasks, kept samples, history, importance."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from softmask.models.history import History
from softmask.models.inspection import Inspection

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0 0 2rem; } th, td { padding: .25rem .8rem .25rem 0; text-align: left; }
th { border-bottom: 1px solid #999; } td { border-bottom: 1px solid #ddd; vertical-align: top; }
img { max-width: 100%; }
"""


def page(found: Inspection, history: History) -> str:
    shape = " x ".join(map(str, found.input_shape))
    about = (
        f"{found.network} for inputs of {shape}, method {found.method}, {found.parameters:,} parameters, "
        f"{found.bytes:,} bytes on disk"
    )
    tasks = [
        (t.name, ", ".join(t.classes), t.samples, t.epochs, _percent(t.accuracy), _percent(t.free_capacity), t.learned)
        for t in found.tasks
    ]
    parts = [f"<h1>{escape(found.path)}</h1><p>{escape(about)}</p>"]
    columns = ("task", "classes", "samples", "epochs", "accuracy when learned", "free capacity after it", "learned")
    parts.append(_table("Tasks", columns, tasks))
    if found.drift:
        rows = [
            (
                d.task,
                d.samples,
                _percent(d.accuracy_then),
                _percent(d.accuracy_now),
                _percent(d.changed),
                f"{d.moved:.4f}",
            )
            for d in found.drift
        ]
        about_kept = ("task", "kept samples", "accuracy then", "accuracy now", "answers changed", "probabilities moved")
        parts.append(_table("Kept samples", about_kept, rows))
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


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
