"""The pool of processes: it outlives its workers, and they do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from softmask.experiments.executors import WORKER_DIED, ExecutorError, ProcessExecutor
from tests.experiments.executors.work import (
    call,
    killed,
    killed_once,
    killed_once_on_a_gpu,
    mark_and_sleep,
    no_way_back,
    square,
    visible_gpu,
    waits_for,
    warned,
    where,
)

PATIENCE = 60.0
ROOT = Path(__file__).parents[3]


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_workers_die_and_the_pool_goes_on(tmp_path: Path) -> None:
    before = dict(os.environ)
    jobs = [(killed_once, tmp_path / "mark"), (killed, 0), (no_way_back, 1), (where, 0.0)]
    outcomes = {outcome.item[0]: outcome for outcome in ProcessExecutor(jobs=1, attempts=2).map(call, jobs)}
    assert outcomes[killed_once].result == "second attempt"
    given_up = outcomes[killed]
    assert given_up.kind == WORKER_DIED
    assert given_up.error == "the worker process was ended by SIGKILL (out of memory?), in each of 2 attempts"
    no_result = outcomes[no_way_back].error
    assert no_result is not None
    assert "no_way_back" in no_result
    pid, threads, waiting = outcomes[where].result
    assert pid != os.getpid()
    assert (threads, waiting) == (1, "passive")
    assert not alive(pid), "nobody is left behind"
    assert dict(os.environ) == before, "the driver's own surroundings stay as they were"


def test_a_warning_in_a_worker_is_one_of_the_driver(capfd: pytest.CaptureFixture[str]) -> None:
    """Which prints it once, however many workers say the same."""
    with pytest.warns(UserWarning, match="7 is a strange number"):
        assert [outcome.result for outcome in ProcessExecutor(jobs=2).map(warned, [7, 7])] == [7, 7]
    assert capfd.readouterr().err == ""


def test_what_cannot_go_to_another_process_is_said_before_one_is_started() -> None:
    with pytest.raises(ExecutorError, match="cannot go to another process"):
        list(ProcessExecutor(jobs=1).map(lambda number: number, [1]))


def test_as_many_at_once_as_there_are_jobs_and_closing_stops_them(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    outcomes = iter(ProcessExecutor(jobs=2).map(call, [(mark_and_sleep, mark), (square, 3)]))
    assert next(outcomes).result == 9, "the second item does not wait for the first"
    wait_for(lambda: mark.exists() and mark.read_text() != "")
    pid = int(mark.read_text())
    assert alive(pid)
    outcomes.close()  # type: ignore[attr-defined]
    assert not alive(pid)


DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have told them to ignore it
from pathlib import Path
from softmask.experiments.executors import ProcessExecutor
from tests.experiments.executors.work import mark_and_sleep
list(ProcessExecutor(jobs=1).map(mark_and_sleep, [Path(sys.argv[1])]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_their_driver(tmp_path: Path, how: signal.Signals) -> None:
    mark = tmp_path / "mark"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(mark)],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: mark.exists() and mark.read_text() != "")
        worker = int(mark.read_text())
        assert alive(worker)
        driver.send_signal(how)
        driver.wait(PATIENCE)
        wait_for(lambda: not alive(worker))
    finally:
        driver.kill()
        driver.wait()


def test_each_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    executor = ProcessExecutor(jobs=3, devices=("0", "1"))
    assert sorted(str(outcome.result) for outcome in executor.map(visible_gpu, range(3))) == ["0", "0", "1"]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7", "the driver's own is not touched"


def test_a_worker_that_died_is_replaced_on_its_gpu(tmp_path: Path) -> None:
    executor = ProcessExecutor(jobs=1, devices=("4",))
    jobs = [(killed_once, tmp_path / "mark"), (visible_gpu, 0)]
    outcomes = list(executor.map(call, jobs))
    assert [outcome.ok for outcome in outcomes] == [True, True]
    assert outcomes[-1].result == "4"


def test_a_worker_that_died_does_not_go_to_the_gpu_of_another(tmp_path: Path) -> None:
    executor, marker = ProcessExecutor(jobs=2, devices=("4", "5")), tmp_path / "mark"
    jobs = [(waits_for, tmp_path / "second"), (killed_once_on_a_gpu, marker)]
    found = {outcome.item[0]: outcome.result for outcome in executor.map(call, jobs)}
    assert found == {waits_for: "4", killed_once_on_a_gpu: "5"}
