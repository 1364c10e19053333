"""Which figures a report has, made from stored runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from softmask.experiments.analyses.accuracy import paper_measure, references
from softmask.experiments.analyses.capacity import WHOLE, facts_after
from softmask.experiments.analyses.cost import times
from softmask.experiments.analyses.curves import group_curves, mean_matrix
from softmask.experiments.analyses.grouping import UNRANKED, Group, finished_groups, gathered
from softmask.experiments.analyses.representation import representation_curves
from softmask.experiments.analyses.table import Value
from softmask.experiments.metrics import average_accuracy
from softmask.experiments.report.charts import Chart, Dot, DotChart, HeatMap, LineChart, Series
from softmask.experiments.runs.store import StoredRun

Curves = Callable[[Group], Sequence[Sequence[float]]]
"""One curve for each seed, all of one length; nothing where the group has none."""


def all_figures(runs: Iterable[StoredRun]) -> dict[str, list[Chart]]:
    """Charts by what they are about, for each sequence and way of training."""
    runs = gathered(runs)
    groups = finished_groups(runs)
    alone = references(runs)

    def lines(name: str, title: str, y_label: str, curves: Curves, from_zero: bool = False) -> list[Chart]:
        made = (_lines(name, title, y_label, members, curves, from_zero) for members in _by_setting(groups))
        return [chart for chart in made if chart is not None]

    continual = [group for group in groups if group.title not in UNRANKED]
    return {
        "accuracy": [_dots(members) for members in _by_setting(groups)],
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
    """Groups that may be drawn in one figure: of one sequence, trained alike."""
    found: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        found.setdefault((group.sequence, group.training), []).append(group)
    return list(found.values())


def _label(group: Group) -> str:
    return f"{group.title} ({group.changed})" if group.changed else group.title


def _where(group: Group) -> str:
    return f"{group.sequence}, {group.training}"


def _file_name(what: str, group: Group) -> str:
    said = f"{what} {group.sequence} {group.training}"
    return "".join(character if character.isalnum() or character in "-." else "_" for character in said)


def _lines(
    name: str, title: str, y_label: str, members: Sequence[Group], curves: Curves, from_zero: bool
) -> LineChart | None:
    series = []
    for group in members:
        found = [curve for curve in curves(group) if curve]
        if found and len(found[0]) > 1:
            series.append(_series(_label(group), found))
    if not series:
        return None
    said = f"{title}: {_where(members[0])}"
    return LineChart(_file_name(name, members[0]), said, "tasks learned", y_label, tuple(series), from_zero)


def _series(label: str, curves: Sequence[Sequence[float]]) -> Series:
    values = [Value.of(list(each)) for each in zip(*curves, strict=True)]
    known = [value for value in values if value is not None]
    std = tuple(value.std or 0.0 for value in known) if len(curves) > 1 else None
    return Series(label, tuple(range(1, 1 + len(known))), tuple(value.mean for value in known), std)


def _so_far(group: Group) -> list[list[float]]:
    """After each task, the mean over all tasks learned by then."""
    if group.title in UNRANKED:
        return []
    return [[sum(row.values()) / len(row) for _, row in sorted(run.accuracies().items())] for run in group.runs]


def _blocked(group: Group) -> list[list[float]]:
    shares = [
        [facts_after(run, learned).get("blocked", {}).get(WHOLE) for learned in range(1, group.tasks + 1)]
        for run in group.runs
    ]
    return [[100 * share for share in curve] for curve in shares if all(share is not None for share in curve)]


def _ends(group: Group) -> list[list[float]]:
    """Only where it is worth drawing: most methods have nothing to do at a task's end."""
    curves = [times(run, "end_seconds") for run in group.runs]
    return [curve for curve in curves if curve and max(curve) > 0.05 and len(curve) == group.tasks]


def _dots(members: Sequence[Group]) -> DotChart:
    dots = []
    for group in members:
        value = Value.of([average_accuracy(run.accuracies()) for run in group.runs])
        assert value is not None
        paper = paper_measure("ACC", group.title, group.sequence) if group.whole else None
        dots.append(Dot(_label(group), value.mean, value.std, paper))
    title = f"Accuracy after the last task: {_where(members[0])}"
    return DotChart(_file_name("accuracy", members[0]), title, "accuracy, %", tuple(dots))


def _matrix(group: Group) -> HeatMap:
    matrix = mean_matrix(group)
    rows = tuple(tuple(row.get(task) for task in range(group.tasks)) for _, row in sorted(matrix.items()))
    return HeatMap(_file_name(f"matrix {_label(group)}", group), f"{_label(group)} on {_where(group)}", rows)


def _representation(runs: Sequence[StoredRun]) -> list[Chart]:
    found: dict[tuple[str, str, str], list[Series]] = {}
    names: dict[tuple[str, str, str], str] = {}
    for curve in representation_curves(runs):
        place = (curve.group.sequence, curve.onto, curve.group.training)
        label = _label(curve.group) + (", union" if curve.union else "")
        points = curve.points
        std = tuple(v.std or 0.0 for v in points.values()) if any(v.std is not None for v in points.values()) else None
        series = Series(label, tuple(points), tuple(value.mean for value in points.values()), std)
        found.setdefault(place, []).append(series)
        names[place] = _file_name(f"representation {curve.onto}", curve.group)
    return [
        LineChart(
            names[place],
            f"A new classifier for {place[1]} on features learned on {place[0]}, {place[2]}",
            "tasks learned",
            "accuracy, %",
            tuple(series),
        )
        for place, series in found.items()
    ]
