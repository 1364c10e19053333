"""Accuracy, forward and backward transfer against numbers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softmask.experiments.metrics import FORMULAS, average_accuracy, backward_transfer, forward_transfer

# Three tasks; row i is measured after task i.
MATRIX = {
    0: {0: 90.0},
    1: {0: 80.0, 1: 70.0},
    2: {0: 60.0, 1: 75.0, 2: 50.0},
}
ALONE = {0: 91.0, 1: 66.0, 2: 44.0}


def test_accuracy_is_the_mean_of_the_last_row() -> None:
    assert average_accuracy(MATRIX) == pytest.approx((60 + 75 + 50) / 3)


def test_forward_transfer_compares_each_task_when_learned_with_learning_it_alone() -> None:
    assert forward_transfer(MATRIX, ALONE) == pytest.approx(((90 - 91) + (70 - 66) + (50 - 44)) / 3)


def test_backward_transfer_leaves_the_last_task_out() -> None:
    assert backward_transfer(MATRIX) == pytest.approx(((60 - 90) + (75 - 70)) / 2)


percent = st.floats(0, 100)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(percent, percent, percent), min_size=2, max_size=12))
def test_the_three_measures_explain_the_accuracy(tasks: list[tuple[float, float, float]]) -> None:
    """ACC = mean(one) + FWT + BWT (T - 1) / T: nothing is counted twice and nothing left out."""
    count = len(tasks)
    alone = {task: values[0] for task, values in enumerate(tasks)}
    matrix = {task: {task: values[1]} for task, values in enumerate(tasks)}
    # The last task is measured at once, so its own and its last accuracy are one number.
    matrix[count - 1] |= {task: values[2] for task, values in enumerate(tasks[:-1])}
    forward, backward = forward_transfer(matrix, alone), backward_transfer(matrix)
    assert forward is not None
    assert backward is not None
    explained = sum(alone.values()) / count + forward + backward * (count - 1) / count
    assert average_accuracy(matrix) == pytest.approx(explained, abs=1e-9)


def test_rows_may_come_in_any_order() -> None:
    shuffled = {after: dict(reversed(row.items())) for after, row in reversed(MATRIX.items())}
    assert average_accuracy(shuffled) == average_accuracy(MATRIX)
    assert forward_transfer(shuffled, ALONE) == forward_transfer(MATRIX, ALONE)
    assert backward_transfer(shuffled) == backward_transfer(MATRIX)


def test_one_task_has_no_backward_transfer() -> None:
    assert backward_transfer({0: {0: 80.0}}) is None
    assert forward_transfer({0: {0: 80.0}}, {0: 70.0}) == pytest.approx(10)


def test_joint_learning_has_no_transfer() -> None:
    joint = {2: {0: 60.0, 1: 75.0, 2: 50.0}}
    assert average_accuracy(joint) == pytest.approx((60 + 75 + 50) / 3)
    assert forward_transfer(joint, ALONE) is None
    assert backward_transfer(joint) is None


def test_forward_transfer_needs_every_task_alone() -> None:
    assert forward_transfer(MATRIX, {0: 91.0, 2: 44.0}) is None


def test_each_measure_has_its_formula() -> None:
    assert set(FORMULAS) == {"ACC", "FWT", "BWT"}
