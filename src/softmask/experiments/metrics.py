"""Accuracy, forward and backward transfer as functions of an accuracy matrix, as the paper defines them.

`matrix[i][j]` is the accuracy on task j, in percent, after task i was learned (i >= j); T is the number of tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

Matrix = Mapping[int, Mapping[int, float]]

FORMULAS = {
    "ACC": "mean over tasks j of a[T][j]",
    "FWT": "mean over tasks j of a[j][j] - one[j]",
    "BWT": "mean over tasks j < T of a[T][j] - a[j][j]",
}


NO_ID = "ACC (no id)"
NO_ID_FORMULA = (
    "as ACC, without the task id: the head of the class whose mean feature is nearest; where all tasks have the same "
    "classes, the mean over all heads"
)


def accuracy_without_id(by_rule: Mapping[str, Matrix]) -> float | None:
    """`ACC (no id)` from the accuracies of each rule. None for a run that did not measure them after its last task."""
    matrix = by_rule.get("means") or by_rule.get("heads")
    return average_accuracy(matrix) if matrix else None


def average_accuracy(matrix: Matrix) -> float:
    """Mean accuracy over all tasks after the last one."""
    last = matrix[max(matrix)]
    return sum(last.values()) / len(last)


def forward_transfer(matrix: Matrix, alone: Mapping[int, float]) -> float | None:
    """Gain of a task from learning in sequence over learning it alone (ONE). None where tasks were learned jointly."""
    tasks = sorted(matrix[max(matrix)])
    if any(task not in matrix or task not in alone for task in tasks):
        return None
    return sum(matrix[task][task] - alone[task] for task in tasks) / len(tasks)


def backward_transfer(matrix: Matrix) -> float | None:
    """Gain of earlier tasks from later ones; negative values are forgetting. None for a single task or joint
    training."""
    tasks = sorted(matrix[max(matrix)])
    earlier = tasks[:-1]
    if not earlier or any(task not in matrix for task in earlier):
        return None
    last = matrix[tasks[-1]]
    return sum(last[task] - matrix[task][task] for task in earlier) / len(earlier)
