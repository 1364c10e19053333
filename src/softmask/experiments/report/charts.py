"""Figures as data, made from stored runs. One form serves the report's script and matplotlib."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from softmask.experiments.analyses.accuracy import chance, group_curves, mean_matrix, references
from softmask.experiments.analyses.capacity import WHOLE, blocked_parts
from softmask.experiments.analyses.cost import times
from softmask.experiments.analyses.grouping import UNRANKED, Group, gathered
from softmask.experiments.analyses.representation import representation_curves
from softmask.experiments.analyses.table import Value
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.paper import paper_measure
from softmask.experiments.runs.store import StoredRun

# Colours that colour-blind readers can tell apart (after Okabe and Ito), on light and on dark ground.
COLOURS = (
    ("#0067a5", "#62b4f0"),
    ("#c8480a", "#f08a55"),
    ("#00795a", "#3fc79a"),
    ("#a4407e", "#dd8abb"),
    ("#8a6a00", "#dcb53c"),
    ("#5b4fb0", "#a79df0"),
    ("#4a4a4a", "#c4c4c4"),
)
FIRST = ("SPG", "NCL", "HAT", "WSN", "EWC", "ONE", "MTL")
OTHERS = (
    *("A-GEM", "PGN", "PathNet", "CAT", "SupSup", "UCL", "SI", "TAG", "EWC-GI", "SPG-FI"),
    *("SPG (w/o CHI)", "SPG (w/o SMH)", "SPG (w/ hard-masking)"),
    *("LwF", "GPM", "SGP", "SPG+"),
    *("PackNet", "SpaceNet", "APD", "TRGP", "GPM+BECAME", "BinPlay", "DMC"),
    *("MAS", "ER", "DER++", "MIR", "GEM", "iCaRL", "MER", "GR"),
)
DASHES = ("", "6 3", "2 3", "9 3 2 3", "12 4", "9 3 2 3 2 3")


def style(label: str, place: int) -> tuple[int, int]:
    """Index of the colour and of the dash; a system has the same in every figure."""
    known = FIRST + OTHERS
    index = known.index(label) if label in known else len(known) + place
    return index % len(COLOURS), index // len(COLOURS) % len(DASHES)


@dataclass(frozen=True)
class Series:
    """One line with its standard deviation over seeds, if there are several."""

    label: str
    x: tuple[int, ...]
    y: tuple[float, ...]
    std: tuple[float, ...] | None = None
    seeds: int = 1


@dataclass(frozen=True)
class LineChart:
    """Lines over the number of tasks."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    from_zero: bool = False
    """Whether the y axis begins at zero."""

    @property
    def note(self) -> str:
        return spread_note("Band", [line.seeds for line in self.series])

    @property
    def alt(self) -> str:
        """Text for screen readers."""
        ends = ", ".join(f"{line.label} from {line.y[0]:.1f} to {line.y[-1]:.1f}" for line in self.series)
        return f"Line chart. {self.title}. {self.y_label} over {self.x_label}: {ends}."

    def to_dict(self) -> dict[str, Any]:
        lines = [
            {"label": line.label, "x": line.x, "y": rounded(line.y), "std": rounded(line.std) if line.std else None}
            for line in self.series
        ]
        axes = {"x": self.x_label, "y": self.y_label, "zero": self.from_zero, "digits": 2 if self.from_zero else 1}
        return {"kind": "line", "title": self.title, "note": self.note, **axes, "series": lines}


@dataclass(frozen=True)
class Dot:
    """One system: our mean over seeds, and the paper's number."""

    label: str
    value: Value


@dataclass(frozen=True)
class DotChart:
    """Systems below one another: our accuracy, the paper's, and chance, on one axis."""

    name: str
    title: str
    x_label: str
    dots: tuple[Dot, ...]
    chance: float | None = None

    @property
    def note(self) -> str:
        return spread_note("Error bars", [dot.value.count for dot in self.dots])

    @property
    def alt(self) -> str:
        systems = ", ".join(
            f"{dot.label} {dot.value.mean:.1f}"
            + (f" (paper {dot.value.paper:.1f})" if dot.value.paper is not None else "")
            for dot in self.dots
        )
        return f"Dot chart. {self.title}. {self.x_label}: {systems}."

    def to_dict(self) -> dict[str, Any]:
        # In full precision, and the difference as text: every number is rounded once.
        dots = [
            [dot.label, dot.value.mean, dot.value.std, dot.value.paper, dot.value.difference, dot.value.count]
            for dot in self.dots
        ]
        about = {"kind": "dots", "title": self.title, "note": self.note, "x": self.x_label}
        return {**about, "chance": self.chance, "dots": dots}


@dataclass(frozen=True)
class HeatMap:
    """An accuracy matrix: accuracy on each task after each task."""

    name: str
    title: str
    rows: tuple[tuple[float | None, ...], ...]
    note: str = ""

    @property
    def alt(self) -> str:
        last = [value for value in self.rows[-1] if value is not None]
        diagonal = [self.rows[i][i] for i in range(len(self.rows)) if i < len(self.rows[i])]
        learned = [value for value in diagonal if value is not None]
        means = [f"{sum(values) / len(values):.1f}" if values else "nothing" for values in (learned, last)]
        return f"Heat map. {self.title}. Mean accuracy just after learning {means[0]}, after the last task {means[1]}."

    def to_dict(self) -> dict[str, Any]:
        rows = [[None if value is None else round(value, 1) for value in row] for row in self.rows]
        return {"kind": "heat", "title": self.title, "rows": rows}


Chart = LineChart | DotChart | HeatMap


def rounded(values: Sequence[float]) -> list[float]:
    """Two more digits than are shown."""
    return [round(value, 3) for value in values]


def spread_note(mark: str, seeds: Sequence[int]) -> str:
    """Explains bars or bands; empty where every system has one seed."""
    several = sorted({count for count in seeds if count > 1})
    if not several:
        return ""
    counts = " or ".join(map(str, several))
    return f"{mark}: standard deviation over n = {counts} seeds" + ("; none: one seed" if 1 in seeds else "")


Curves = Callable[[Group], Sequence[Sequence[float]]]
"""One curve for each seed, all of one length; empty where the group has none."""
LONGEST_NAME = 100
"""Of a figure's file, without its suffix: file systems allow 255 bytes."""


def all_figures(runs: Iterable[StoredRun]) -> dict[str, list[Chart]]:
    """Charts by subject, for each sequence and training."""
    runs = gathered(runs)
    alone = references(runs)

    def lines(name: str, title: str, y_label: str, curves: Curves, from_zero: bool = False) -> list[Chart]:
        made = (_lines(name, title, y_label, members, curves, from_zero) for members in _by_setting(runs.groups))
        return [chart for chart in made if chart is not None]

    continual = [group for group in runs.groups if group.title not in UNRANKED]
    return {
        "accuracy": [_dots(members) for members in _by_setting(runs.groups)],
        "so-far": lines("so-far", "Accuracy on the tasks learned so far", "mean accuracy, %", _so_far),
        "transfer": lines(
            "transfer", "Forward transfer of each task", "points above ONE", lambda group: group_curves(group, alone)
        ),
        "capacity": lines("capacity", "Completely blocked parameters", "% of the backbone", _blocked, True),
        "representation": _representation(runs),
        "task-end": lines("task-end", "Time at task ends", "seconds", _ends, True),
        "matrix": [_matrix(group) for group in continual if mean_matrix(group)],
    }


def _by_setting(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups for one figure: of one sequence, trained alike."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        found.setdefault((group.sequence, group.training), []).append(group)
    return list(found.values())


def _label(group: Group) -> str:
    return f"{group.title} ({group.changed})" if group.changed else group.title


def _where(group: Group) -> str:
    return f"{group.sequence}, {group.training}"


def file_name(text: str) -> str:
    """Letters, digits and a few marks. A long name ends with a digest of the whole."""
    name = "".join(character if character.isalnum() or character in "-." else "_" for character in text)
    if len(name.encode()) <= LONGEST_NAME:
        return name
    start = name.encode()[: LONGEST_NAME - 10].decode(errors="ignore")
    return f"{start}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _name(subject: str, group: Group) -> str:
    return file_name(f"{subject} {group.sequence} {group.training}")


def _lines(
    name: str, title: str, y_label: str, members: Sequence[Group], curves: Curves, from_zero: bool
) -> LineChart | None:
    series = []
    for group in members:
        found = [curve for curve in curves(group) if curve]
        if found and len(found[0]) > 1:
            values = [value for each in zip(*found, strict=True) if (value := Value.of(each))]
            series.append(_series(_label(group), range(1, 1 + len(values)), values))
    if not series:
        return None
    where = f"{title}: {_where(members[0])}"
    return LineChart(_name(name, members[0]), where, "tasks learned", y_label, tuple(series), from_zero)


def _series(label: str, x: Iterable[int], values: Sequence[Value]) -> Series:
    seeds = max(value.count for value in values)
    std = tuple(value.std or 0.0 for value in values) if seeds > 1 else None
    return Series(label, tuple(x), tuple(value.mean for value in values), std, seeds)


def _so_far(group: Group) -> list[list[float]]:
    """After each task, the mean over all tasks learned by then."""
    if group.title in UNRANKED:
        return []
    return [[sum(row.values()) / len(row) for _, row in sorted(run.accuracies().items())] for run in group.runs]


def _blocked(group: Group) -> list[list[float]]:
    shares = [[blocked_parts(run, learned).get(WHOLE) for learned in range(1, group.tasks + 1)] for run in group.runs]
    known = [[share for share in curve if share is not None] for curve in shares]
    return [[100 * share for share in curve] for curve in known if len(curve) == group.tasks]


def _ends(group: Group) -> list[list[float]]:
    """Only of methods that compute something at the end of a task."""
    curves = [times(run, "end_seconds") for run in group.runs]
    return [curve for curve in curves if curve and max(curve) > 0.05 and len(curve) == group.tasks]


def _dots(members: Sequence[Group]) -> DotChart:
    dots = []
    for group in members:
        value = group.over_seeds(lambda run: average_accuracy(run.accuracies()))
        assert value is not None
        paper = paper_measure("ACC", group.title, group.sequence) if group.whole else None
        dots.append(Dot(_label(group), replace(value, paper=paper)))
    title = f"Accuracy after the last task: {_where(members[0])}"
    return DotChart(_name("accuracy", members[0]), title, "accuracy, %", tuple(dots), chance(members[0]))


def _matrix(group: Group) -> HeatMap:
    rows = tuple(tuple(map(row.get, range(group.tasks))) for _, row in sorted(mean_matrix(group).items()))
    return HeatMap(_name(f"matrix {_label(group)}", group), f"{_label(group)} on {_where(group)}", rows)


def _representation(runs: Sequence[StoredRun]) -> list[Chart]:
    found: dict[tuple[str, str, str], list[Series]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for curve in representation_curves(runs):
        place = (curve.group.sequence, curve.onto, curve.group.training)
        label = _label(curve.group) + (", union" if curve.union else "")
        found.setdefault(place, []).append(_series(label, curve.points, list(curve.points.values())))
        names[place] = _name(f"representation {curve.onto}", curve.group)
    return [
        LineChart(
            names[place],
            f"New classifier for {place[1]} on features learned on {place[0]}, {place[2]}",
            "tasks learned",
            "accuracy, %",
            tuple(series),
        )
        for place, series in found.items()
    ]
