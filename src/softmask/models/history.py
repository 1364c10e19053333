"""The history of a model from its log, and a plot of each task's accuracy over time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from softmask.errors import ConfigError, SoftmaskError
from softmask.models.description import ModelConfig
from softmask.models.folder import ModelFolder
from softmask.models.inspection import measure_drift
from softmask.storage.lease import opened_if_plain

LARGEST_HISTORY = 50_000_000
PLOTS = (".png", ".svg", ".pdf")


def accuracies(folder: ModelFolder, config: ModelConfig, answer: Callable[[Tensor, int], Tensor]) -> dict[str, float]:
    """Current accuracies of the tasks with kept samples; for unlabelled samples, the agreement with the earlier
    answers."""
    if not any(task.probe for task in config.tasks):
        return {}
    return {drift.task: drift.curve[1] for drift in measure_drift(folder, config, answer)}


@dataclass(frozen=True)
class Event:
    """A line of the log."""

    kind: str
    time: str
    task: str
    """Its name today; empty where the event concerns no task."""
    accuracies: Mapping[str, float]
    """Accuracies right after the event, by the current names of the tasks."""
    facts: Mapping[str, Any]
    """The whole line."""


@dataclass(frozen=True)
class History:
    """The log of a model, oldest first."""

    events: tuple[Event, ...]

    @property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """For each task that is still known, its accuracy after the events of these numbers."""
        found: dict[str, list[tuple[int, float]]] = {}
        for number, event in enumerate(self.events):
            for task, accuracy in event.accuracies.items():
                found.setdefault(task, []).append((number, accuracy))
            if event.kind == "removed":
                found.pop(event.task, None)
        return found

    def draw(self, file: Path) -> None:
        """The curves as PNG, SVG or PDF, by the ending of the file."""
        if file.suffix.lower() not in PLOTS:
            raise ConfigError(f"{file}: a plot ends in {', '.join(PLOTS)}")
        import matplotlib  # slow to import
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for task, curve in self.curves.items():
            axes.plot(
                [place for place, _ in curve], [100 * value for _, value in curve], marker="o", label=_plain(task)
            )
        used = sorted({place for curve in self.curves.values() for place, _ in curve})
        named = [_plain(f"{self.events[place].kind} {self.events[place].task}") for place in used]
        axes.set_xticks(used, named, rotation=30, ha="right")
        axes.set(ylabel="accuracy (%)", ylim=(0, 102))
        axes.grid(alpha=0.3)
        if self.curves:
            axes.legend(frameon=False)
        with matplotlib.rc_context({"svg.hashsalt": "softmask"}):
            figure.savefig(file, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)

    def to_dict(self) -> dict[str, Any]:
        return {"events": [dict(event.facts) for event in self.events], "accuracies": self.curves}


def _plain(text: str) -> str:
    """Text with dollar signs escaped, which would begin a formula."""
    return text.replace("$", r"\$")


def read_history(file: Path) -> History:
    """Reads the log of a folder; lines that are not events are skipped."""
    events: list[Event] = []
    names: dict[str, str] = {}  # of tasks today, by their names at the time
    for facts in reversed(list(_lines(file))):
        kind, task = facts["kind"], str(facts.get("task", ""))
        if kind == "renamed":
            names[task] = names.pop(str(facts.get("name", "")), str(facts.get("name", "")))
        elif kind == "removed":
            names.pop(task, None)
        found = facts.get("accuracies")
        if not isinstance(found, dict):  # of an older release
            found = {task: facts["accuracy"]} if "accuracy" in facts else {}
        known = {names.get(str(k), str(k)): float(v) for k, v in found.items() if isinstance(v, (int, float))}
        events.append(Event(str(kind), str(facts.get("time", "")), names.get(task, task), known, facts))
    return History(tuple(reversed(events)))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(opened_if_plain(file, os.O_RDONLY), "rb") as opened:
            content = opened.read(LARGEST_HISTORY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise SoftmaskError(f"{file}: {error.strerror or error}") from None
    for line in content.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict) and "kind" in found and len(found) > 1:  # a mark says nothing else
                yield found
