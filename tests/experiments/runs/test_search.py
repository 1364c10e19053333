"""A search: judged by validation alone, repeatable, resumable, and honest about what it gave up."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from softmask.errors import SoftmaskError
from softmask.experiments.runs import run as run_module
from softmask.experiments.runs import search as search_module
from softmask.experiments.runs import study as study_module
from softmask.experiments.runs.search import Search, best_of, found_settings, objective
from softmask.experiments.runs.search_space import SearchPlan
from softmask.experiments.runs.store import Store
from softmask.experiments.runs.study import TRIALS_TO_COMPARE_WITH, StudyError, TrialRecord, without_password
from softmask.learning.task import Batches, TaskSequence
from softmask.methods.spg import SPG
from tests.experiments.runs.examples import environment

TINY = {"width": 0.0625, "epochs": 1}


def plan(method: str = "spg", *, trials: int = 3, tasks: int = 2, **changed: Any) -> SearchPlan:
    options = {"preset": "short", "changes": TINY, **changed}
    return SearchPlan(method=method, sequence="D-5", trials=trials, tasks=tasks, **options)


def searched(given: SearchPlan, folder: Path, **options: Any) -> Search:
    search = Search.of(given, folder, **options)
    search.begin()
    search.work()
    return search


def told(search: Search) -> list[dict[str, Any]]:
    return [dataclasses.asdict(trial) for trial in search.trials()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """Six trials that nobody disturbed."""
    return searched(plan(trials=6), tmp_path_factory.mktemp("whole"))


def test_the_objective_is_mean_validation_accuracy(whole: Search) -> None:
    for trial in whole.trials():
        assert trial.state == "complete"
        run = Store(whole.folder / "runs").find(whole.plan.config(trial.found))
        assert run is not None
        last = [event["validation"] for event in run.events("accuracy") if event["after"] == 1]
        assert len(last) == 2
        assert trial.value == pytest.approx(100 * mean(last))
        assert trial.tasks == 2
    assert len({tuple(trial.found.values()) for trial in whole.trials()}) == 6


def test_the_first_trial_has_the_defaults_and_the_file_says_how_they_did(whole: Search) -> None:
    trials = whole.trials()
    assert trials[0].found == whole.plan.defaults()
    found = found_settings(whole, trials)
    best = max(trials, key=lambda trial: trial.value or 0)
    assert found.found["value"] == best.value
    assert found.found["defaults"] == trials[0].value
    assert {f"network.{name}": value for name, value in found.network.items()} == best.found
    found.check("it")


def test_the_file_holds_what_was_fixed(tmp_path: Path) -> None:
    fixed = {**TINY, "damping": 0.01, "settings.lr": 0.25}
    search = searched(plan("si", tasks=1, dropout=False, changes=fixed), tmp_path)
    found = found_settings(search, search.trials())
    strength = best_of(search.trials()).found["settings.strength"]
    assert found.settings == {"damping": 0.01, "lr": 0.25, "strength": strength}


def test_a_search_on_the_first_tasks_has_the_network_of_the_whole_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PGN's columns are the narrower the more tasks there are: a rate found with wide ones is of no use."""
    built = []
    build = run_module.build

    def note(config: Any, sequence: TaskSequence) -> Any:
        built.append(
            (len(sequence.tasks), len(method.scenario.classes)) if (method := build(config, sequence)) else None
        )
        return method

    monkeypatch.setattr(run_module, "build", note)
    search = searched(plan("pgn", trials=1), tmp_path)
    assert built == [(5, 5)]
    assert search.trials()[0].tasks == 2
    run_module.run(plan("pgn").config({}), Store(tmp_path / "plain"))
    assert built[1:] == [(2, 2)], "a run of two tasks keeps its meaning"


class Trap(Batches):
    """Test images that nobody may touch."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            raise AssertionError(f"a trial touched the test set: {name}")
        return super().__getattribute__(name)


def test_a_trial_cannot_reach_the_test_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = run_module.load_sequence

    def trapped(*arguments: Any) -> TaskSequence:
        sequence = load(*arguments)
        return dataclasses.replace(sequence, tests=tuple(Trap() for _ in sequence.tests))

    monkeypatch.setattr(run_module, "load_sequence", trapped)
    with pytest.raises(AssertionError, match="touched the test set"):
        run_module.run(plan().config({}), Store(tmp_path / "store"))
    search = searched(plan(trials=1), tmp_path)
    (run,) = Store(search.folder / "runs").runs()
    assert run.finished
    assert all("test" not in event for event in run.events("accuracy"))


def test_interrupted_anywhere_it_goes_on_with_the_same_trials(
    whole: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops after every seventh event, as a Ctrl-C would, and starts again until all is done."""
    search = Search.of(whole.plan, tmp_path)
    count, stops = 0, 0

    def stop(_: dict[str, Any]) -> None:
        nonlocal count
        count += 1
        if count % 7 == 0:
            raise KeyboardInterrupt

    def stopping(*arguments: Any, listeners: Any, **options: Any) -> Any:
        return run_module.run(*arguments, listeners=[*listeners, stop], **options)

    monkeypatch.setattr(search_module, "run", stopping)
    search.begin()
    while [trial.state for trial in search.trials()] != ["complete"] * 6:
        assert stops < 50
        try:
            search.work()
        except KeyboardInterrupt:
            stops += 1
    assert stops > 3
    assert told(search) == told(whole)


def test_more_trials_continue_the_same_search(whole: Search, tmp_path: Path) -> None:
    few = searched(dataclasses.replace(whole.plan, trials=2), tmp_path)
    assert told(few) == told(whole)[:2]
    more = searched(dataclasses.replace(whole.plan, trials=4), tmp_path)
    assert more.folder == few.folder
    assert told(more) == told(whole)[:4]


def test_a_database_holds_the_same_trials(whole: Search, tmp_path: Path) -> None:
    given = dataclasses.replace(whole.plan, trials=3)
    search = searched(given, tmp_path, study=f"sqlite:///{tmp_path}/study.db")
    assert told(search) == told(whole)[:3]


def test_a_torn_journal_is_mended(whole: Search, tmp_path: Path) -> None:
    few = searched(dataclasses.replace(whole.plan, trials=2), tmp_path)
    with open(few.address, "ab") as journal:
        journal.write(b'{"op_code":6,"worker')
    more = searched(dataclasses.replace(whole.plan, trials=3), tmp_path)
    assert told(more) == told(whole)[:3]


@pytest.mark.parametrize("address", ["no-such-database://x", "sqlite:////nowhere/at/all/study.db"])
def test_a_study_that_cannot_be_opened_is_told(tmp_path: Path, address: str) -> None:
    with pytest.raises(StudyError, match="cannot open the study"):
        searched(plan(), tmp_path, study=address)


OPERATION = b'{"op_code":0,"worker_id":"a-1","study_name":"b","directions":[2]}'


@pytest.mark.parametrize(
    "content",
    [
        *(b"SQLite format 3", b'{"precious":1}', b'{"precious":1}\n{"x', b'{"op_code":0}\n{"half', b"{", b"\n"),
        *(b'{"op_code": 0', b'{"op_code":precious', b'{"op_code":4,"worker_id":"a-1"', OPERATION + b"\nmy notes"),
        *(OPERATION + b'\n{"op_code":my notes', OPERATION + b'\nmy notes\n{"op_code":1,"wor'),
        OPERATION.replace(b"0", b"99") + b"\n",
    ],
)
def test_a_file_that_is_not_a_journal_is_not_written_to(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine").write_bytes(content)
    with pytest.raises(StudyError):
        searched(plan(), tmp_path, study=str(tmp_path / "mine"))
    assert (tmp_path / "mine").read_bytes() == content
    assert not list(tmp_path.glob("mine.*"))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StudyError):
        searched(plan(), tmp_path, study=str(tmp_path / "pipe"))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:s3cret@host/db", "postgresql://me:***@host/db"),
        ("mysql://me:s3@cret/x@host:33/db", "mysql://me:***@host:33/db"),
        ("postgresql://host/db?user=me&password=s3cret", "postgresql://host/db?user=me&password=***"),
        ("sqlite:///study.db", "sqlite:///study.db"),
    ],
)
def test_a_password_is_not_printed(tmp_path: Path, address: str, shown: str) -> None:
    assert without_password(address) == shown
    if "s3" in address:
        with pytest.raises(StudyError) as caught:
            searched(plan(), tmp_path, study=address)
        assert "cret" not in str(caught.value)


def test_a_password_in_the_words_of_a_driver_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str) -> None:
        raise ValueError(f"could not connect to {address}")

    monkeypatch.setattr(study_module, "RDBStorage", refuse)
    with pytest.raises(StudyError, match="could not connect") as caught:
        searched(plan(), tmp_path, study="postgresql://me:s3cret@host/db")
    assert "s3cret" not in str(caught.value)


def test_all_thresholds_are_tried_once(tmp_path: Path) -> None:
    search = searched(plan("spg-hard", trials=20, tasks=1, dropout=False), tmp_path)
    assert sorted(trial.found["settings.threshold"] for trial in search.trials()) == [0.2, 0.4, 0.6, 0.8]


def test_a_diverged_trial_is_given_up_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = SPG.loss
    monkeypatch.setattr(SPG, "loss", lambda method, step: loss(method, step) * float("nan"))
    search = searched(plan(trials=2, tasks=1), tmp_path)
    assert [trial.state for trial in search.trials()] == ["pruned", "pruned"]
    assert all("diverged" in (trial.reason or "") for trial in search.trials())
    with pytest.raises(SoftmaskError, match=r"no trial was finished; the first said: training on .* diverged"):
        best_of(search.trials())


def test_a_trial_that_breaks_is_failed_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, broken = SPG.loss, []

    def once(method: SPG, step: Any) -> Any:
        if not broken:
            broken.append(True)
            raise RuntimeError("out of luck")
        return loss(method, step)

    monkeypatch.setattr(SPG, "loss", once)
    first, second = searched(plan(trials=2, tasks=1), tmp_path).trials()
    assert (first.state, first.reason) == ("failed", "RuntimeError: out of luck")
    assert second.state == "complete"


def test_a_trial_below_the_median_is_pruned_after_the_second_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation accuracies by hand: the oracle is the median of the finished trials before it."""
    given = plan(trials=8, tasks=3)
    values = {number: 0.5 + number / 100 for number in range(6)} | {6: 0.51, 7: 0.56}
    study_number = iter(values)

    def played(config: Any, store: Store, *, listeners: Any, **_: Any) -> Any:
        number = next(study_number)
        with store.open(config, listeners=listeners) as writer:
            for task in range(3):
                writer.event("task", task=task, ids=[task], name=f"task {task}")
                for earlier in range(task + 1):
                    writer.event("accuracy", after=task, task=earlier, validation=values[number])
            writer.event("finished")
        found = store.find(config)
        assert found is not None
        return found

    monkeypatch.setattr(search_module, "run", played)
    trials = searched(given, tmp_path).trials()
    states = []
    for number, value in values.items():
        before = [values[other] for other in range(number) if states[other] == "complete"]
        pruned = len(before) >= TRIALS_TO_COMPARE_WITH and value < median(before)
        states.append("pruned" if pruned else "complete")
    assert states.count("pruned") == 1
    assert [trial.state for trial in trials] == states
    assert (trials[6].tasks, trials[6].value) == (2, pytest.approx(51.0))
    assert "median" in (trials[6].reason or "")


def test_the_best_is_the_earliest_of_equals_and_never_an_unfinished_one() -> None:
    trials = [
        TrialRecord(1, "complete", {}, 70.0, 5),
        TrialRecord(2, "pruned", {}, 90.0, 2),
        TrialRecord(3, "complete", {}, 80.0, 5),
        TrialRecord(4, "complete", {}, 80.0, 5),
    ]
    assert best_of(trials).number == 3


def test_weights_of_trials_are_not_kept(whole: Search) -> None:
    assert not list(whole.folder.rglob("*.safetensors"))
    run = next(Store(whole.folder / "runs").runs())
    assert objective(run) > 0


def start(store: Path, trials: int) -> subprocess.Popen[bytes]:
    options = ["--method", "spg", "--sequence", "D-5", "--preset", "short", "--tasks", "2", "--trials", str(trials)]
    options += [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "softmask", "search", *options, "--store", str(store)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_for(folder: Path, runs: int, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and len(list((folder / "runs").glob("*/events.jsonl"))) < runs:
        time.sleep(0.01)


def test_killed_it_goes_on_with_the_same_trials(whole: Search, tmp_path: Path) -> None:
    search = Search.of(whole.plan, tmp_path)
    process = start(tmp_path, 6)
    wait_for(search.folder, 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = [trial for trial in told(search) if trial["state"] != "running"]
    assert before == told(whole)[: len(before)]
    assert 2 <= len(before) < 6
    search.begin()
    search.work()
    assert told(search) == told(whole)


def test_a_trial_that_another_process_ends_meanwhile_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was running when the trials were read, and has ended when its lease is free."""
    search = Search.of(plan(trials=3), tmp_path)
    search.begin()
    study = search.study()
    other = search._take(study)
    assert other is not None
    trial, held = other
    lease = Search._lease

    def late(self: Search, number: int) -> Any:
        if number == trial.number:
            study.tell(trial, 50.0)
            held.close()
            monkeypatch.setattr(Search, "_lease", lease)
        return lease(self, number)

    monkeypatch.setattr(Search, "_lease", late)
    taken = search._take(search.study())
    assert taken is not None
    taken[1].close()
    assert taken[0].number != trial.number


@pytest.mark.slow
def test_two_processes_share_the_trials(tmp_path: Path) -> None:
    given = plan(trials=8)
    processes = [start(tmp_path, 8) for _ in range(2)]
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    search = Search.of(given, tmp_path)
    assert [trial.number for trial in search.trials()] == list(range(1, 9))
    assert all(trial.state in ("complete", "pruned") for trial in search.trials())
    runs = list(Store(search.folder / "runs").runs())
    assert len(runs) == 8
    assert all(len(run.events("started")) == 1 for run in runs)


@pytest.mark.slow
def test_twenty_trials_of_spg_improve_on_the_defaults_or_say_so(tmp_path: Path) -> None:
    given = plan(trials=20, tasks=5, changes={"width": 0.0625, "epochs": 2})
    search = searched(given, tmp_path)
    found = found_settings(search, search.trials()).found
    assert found["trials"] == 20
    assert found["value"] >= found["defaults"]
    assert (found["value"] > found["defaults"]) == (found["trial"] != 1)
