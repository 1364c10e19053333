"""Optuna's memory: a journal that a kill cannot spoil, and trials as plain records."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from softmask.experiments.runs.search_space import Range
from softmask.experiments.runs.study import TrialRecord, open_study, records, suggest


def test_records_tell_how_each_trial_ended(tmp_path: Path) -> None:
    study = open_study(str(tmp_path / "study.journal"), "x")
    for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, None):
        trial = study.ask()
        suggest(trial, "settings.strength", Range(0.5, 0.5))
        if state in (TrialState.COMPLETE, TrialState.PRUNED):
            trial.report(40.0, 0)
            trial.report(60.0, 1)
            trial.set_user_attr("reached", 30.0)
        if state not in (TrialState.COMPLETE, None):
            trial.set_user_attr("reason", "why not")
        if state is not None:
            study.tell(trial, 35.0 if state == TrialState.COMPLETE else None, state=state)
    study.enqueue_trial({"settings.strength": 0.5})
    found = {"settings.strength": 0.5}
    assert records(open_study(str(tmp_path / "study.journal"), "x")) == [
        TrialRecord(1, "complete", found, 35.0, 2),
        TrialRecord(2, "pruned", found, 30.0, 2, "why not"),
        TrialRecord(3, "failed", found, None, 0, "why not"),
        TrialRecord(4, "running", found, None, 0),
    ]


@pytest.mark.parametrize(
    ("allowed", "kind"),
    [(Range(0.1, 10.0, log=True), float), (Range(1, 4), int), (Range(choices=(1e-3, 1e-2)), float)],
)
def test_values_come_from_the_range(allowed: Range, kind: type) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study()
    for _ in range(20):
        trial = study.ask()
        suggest(trial, "x", allowed)
        assert isinstance(trial.params["x"], kind)
        assert trial.params["x"] in allowed


def test_half_a_line_is_cut_and_whole_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    study = open_study(str(file), "x")
    study.ask()
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"op_code":4,"wor')
    study.ask()  # by a process that was there before the kill of another
    assert file.read_bytes().startswith(whole + b"{")
    assert len(open_study(str(file), "x").get_trials()) == 2


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "study.journal"
    file.touch()
    code = (
        "import pathlib, sys, time; from softmask.experiments.runs.study import _KernelLock;"
        "_KernelLock(pathlib.Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.kill()
    with open(f"{file}.lock") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if anybody holds it
