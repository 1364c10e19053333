"""The contract of every executor."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softmask.experiments.executors import Executor, Outcome, ProcessExecutor, RayExecutor, SerialExecutor
from tests.experiments.executors.clusters import loopback_cluster
from tests.experiments.executors.work import odd_ones_fail, square


@pytest.fixture(scope="module", params=["serial", "processes", pytest.param("ray", marks=pytest.mark.slow)])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    if request.param == "serial":
        yield SerialExecutor()
    elif request.param == "processes":
        yield ProcessExecutor(jobs=2)
    else:
        with loopback_cluster() as cluster:
            yield RayExecutor(address=cluster.address)


def test_one_outcome_for_each_item_and_an_error_is_one_too(executor: Executor) -> None:
    items = [0, 1, 2, 3, 4, 5, 6, 6]
    outcomes = sorted(executor.map(odd_ones_fail, items), key=lambda outcome: outcome.item)
    assert outcomes == [
        Outcome(0, result=0),
        Outcome(1, error="1 is odd", kind="SoftmaskError"),
        Outcome(2, result=4),
        Outcome(3, error="ZeroDivisionError", kind="ZeroDivisionError"),
        Outcome(4, result=16),
        Outcome(5, error="MemoryError: out of memory", kind="MemoryError"),
        Outcome(6, result=36),
        Outcome(6, result=36),
    ]
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False, True, False, True, True]


def test_no_items_no_outcomes(executor: Executor) -> None:
    assert list(executor.map(square, [])) == []


def test_tells_how_many_it_works_on_at_once(executor: Executor) -> None:
    assert executor.jobs >= 1
