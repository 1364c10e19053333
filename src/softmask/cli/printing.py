"""Printing: results on standard output, everything else on standard error."""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from softmask.errors import escaped

if TYPE_CHECKING:
    from softmask.learning.fit import Fit
    from softmask.learning.task import Task


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escaped(text), **options)


# No markup: square brackets are printed as they are.
out = _Console(highlight=False, markup=False, soft_wrap=True)
err = _Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

# Without a terminal, a line is printed this often to show that a run is alive.
SECONDS_BETWEEN_LINES = 10.0


def print_json(content: Any) -> None:
    """ASCII only, so that it is valid JSON in any encoding of standard output."""
    out.print_json(json.dumps(content), ensure_ascii=True)


def tell(message: str) -> None:
    err.print(message)


@functools.cache  # an analysis loads the same data for every run; a note is printed once
def note(message: str) -> None:
    tell(f"note: {message}")


def problem(message: str) -> None:
    err.print(Text.assemble(("error:", "bold red"), " ", escaped(message)))


class Progress:
    """Progress of a run: a bar on a terminal, otherwise a line every few seconds."""

    def __init__(self, label: str, tasks: int, epochs: int | None = None, first: int = 0) -> None:
        """`tasks` in all, of which those before `first` are learned already; `epochs` where all have the same."""
        self.label, self.tasks, self.epochs, self.first = label, tasks, epochs, first
        self._last_line = 0.0
        self._began: tuple[float, float] | None = None  # when the first epoch ended, and what was done by then
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=err,
        )
        self._entry = self._bar.add_task(label, total=None, now="")

    def __enter__(self) -> Progress:
        if err.is_terminal:  # elsewhere starting and stopping would print an empty line
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if err.is_terminal:
            self._bar.stop()

    def __call__(self, task: Task, fit: Fit) -> None:
        now = f"task {task.id + 1}/{self.tasks} epoch {fit.epoch} val {100 * fit.last['val_accuracy']:.1f} %"
        # A task that stopped early counts as if it had used all its epochs; a joint one stands for all of its tasks.
        share = 1.0 if fit.done else fit.epoch / fit.training.epochs
        epochs = self.epochs or fit.training.epochs
        done, total = epochs * (task.ids[0] - self.first + len(task.ids) * share), epochs * (self.tasks - self.first)
        self._bar.update(self._entry, completed=done, total=total, now=now)
        clock = time.monotonic()
        left = self._left(clock, done, total)
        if not err.is_terminal and (fit.done or clock - self._last_line > SECONDS_BETWEEN_LINES):
            self._last_line = clock
            tell(f"{self.label}: {now}, lr {fit.last['lr']:.4g}, loss {fit.last['train_loss']:.3f}{left}")

    def _left(self, clock: float, done: float, total: float) -> str:
        """The remaining time at the pace since the first epoch seen here, since a run may be resumed."""
        if self._began is None:
            self._began = (clock, done)
        since, before = self._began
        if done <= before or done >= total:
            return ""
        return f", {(clock - since) * (total - done) / (done - before):.0f} s left"
