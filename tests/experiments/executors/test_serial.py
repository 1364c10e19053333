"""One after the other, and no sooner than asked for."""

from __future__ import annotations

import pytest

from softmask.errors import UnknownName
from softmask.experiments.executors import ProcessExecutor, RayExecutor, SerialExecutor, cores, make_executor


def test_items_are_worked_on_as_they_are_asked_for() -> None:
    seen: list[int] = []
    outcomes = SerialExecutor().map(seen.append, [1, 2, 3])
    next(iter(outcomes))
    assert seen == [1]


def test_ctrl_c_is_no_outcome() -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(SerialExecutor().map(interrupted, [1]))


def test_executors_by_name() -> None:
    assert make_executor("serial", jobs=3) == SerialExecutor()
    assert make_executor("processes", jobs=3) == ProcessExecutor(jobs=3)
    assert make_executor("processes") == ProcessExecutor(jobs=cores())
    assert make_executor("ray", address="auto", cpus=2, gpus=0.5) == RayExecutor("auto", 2, 0.5)
    with pytest.raises(UnknownName, match="did you mean 'processes'"):
        make_executor("process")
