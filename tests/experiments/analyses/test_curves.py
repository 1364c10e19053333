"""Forward transfer by task with its slope, and the accuracy matrix."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from softmask.experiments.analyses.accuracy import accuracy_matrix, transfer_curve
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import Store
from tests.experiments.analyses.made import row, rows, stored, triangle

ALONE = triangle([[50], [50, 60], [50, 60, 70]])


def test_each_task_and_the_slope(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, gains in ((1, (0, 4, 5)), (2, (1, 2, 9)), (3, (2, 3, 4))):
        own = [50 + gains[0], 60 + gains[1], 70 + gains[2]]
        matrix = triangle([own[:1], [1, own[1]], [1, 1, own[2]]])
        stored(store, make_config("spg", "C-10", seed=seed), matrix)
        stored(store, make_config("one", "C-10", seed=seed), ALONE)
    stored(store, make_config("spg", "C-10", seed=4), ALONE)  # without its reference
    (told,) = rows(transfer_curve(store.runs()))
    assert told["seeds"] == 3
    assert [told[str(task)].mean for task in (1, 2, 3)] == [pytest.approx(v) for v in (1.0, 3.0, 6.0)]
    slopes = [stats.linregress(range(3), gains).slope for gains in ((0, 4, 5), (1, 2, 9), (2, 3, 4))]
    assert told["slope"].mean == pytest.approx(sum(slopes) / 3)
    expected = stats.ttest_1samp(slopes, 0).confidence_interval(0.95)
    assert told["slope"].interval == pytest.approx((expected.low, expected.high))


def test_matrix_averages_place_by_place(tmp_path: Path) -> None:
    store = Store(tmp_path)
    stored(store, make_config("spg", "C-10", seed=1), triangle([[50], [40, 60]]))
    stored(store, make_config("spg", "C-10", seed=2), triangle([[70], [20, 80]]))
    table = accuracy_matrix(store.runs())
    first, second = row(table, after=1), row(table, after=2)
    assert (first["task 1"], first["task 2"]) == (pytest.approx(60), None)
    assert (second["task 1"], second["task 2"]) == (pytest.approx(30), pytest.approx(70))
