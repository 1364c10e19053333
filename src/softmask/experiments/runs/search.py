"""Hyperparameter search: Optuna's TPE over a method's ranges, by mean validation accuracy, never by test accuracy.

<folder>/study.journal     all trials (or a database, by its URL)
         runs/             a store with the run of each trial, without test accuracies
         trials/0003/      the lease of the process that works on a trial

A trial on the first tasks of a sequence has the network of the whole sequence. A killed search continues with the same
trials: every draw depends only on the seed, the number of the trial and the trials before it; an interrupted run
resumes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.trial import Trial, TrialState

import softmask
from softmask.errors import SoftmaskError
from softmask.experiments.runs.run import GPU_TROUBLE, Watch, run
from softmask.experiments.runs.search_space import SearchPlan
from softmask.experiments.runs.settings_file import FoundSettings
from softmask.experiments.runs.store import Store, StoredRun
from softmask.experiments.runs.study import TrialRecord, alone, open_study, records, suggest
from softmask.experiments.sequences import sequence_facts
from softmask.learning.fit import DivergedError
from softmask.learning.seeds import derive
from softmask.storage.lease import FolderBusyError, Lease

OBJECTIVE = "mean validation accuracy over the tasks after the last one, in percent"
SECONDS_BETWEEN_LOOKS = 1.0
RANDOM_TRIALS = 10
"""Number of random trials before TPE is used."""
DEFAULTS = 1
"""The number of the trial that has the default settings."""

TrialListener = Callable[[TrialRecord], None]
"""Called with every trial that has ended."""
Display = Callable[[int], AbstractContextManager[Watch]]
"""Shows the progress of the trial with this number."""


class TrialPruned(SoftmaskError):
    """The trial is below the median of those before it."""


@dataclass(frozen=True)
class Search:
    """A plan and its storage. Any number of processes may work on it at once."""

    plan: SearchPlan
    folder: Path
    address: str
    data: Path | None = None
    device: str = "cpu"

    @classmethod
    def of(
        cls, plan: SearchPlan, root: Path, *, study: str | None = None, data: Path | None = None, device: str = "cpu"
    ) -> Search:
        """Everything about a search is in one folder, unless its study is kept elsewhere."""
        folder = root / plan.name()
        return cls(plan, folder, study or str(folder / "study.journal"), data, device)

    def begin(self) -> None:
        """Creates the study and its first trials, if they do not exist."""
        (self.folder / "trials").mkdir(parents=True, exist_ok=True)
        with self._alone():
            study = self.study()
            for found in self.plan.first():
                study.enqueue_trial(found, skip_if_exists=True)

    def study(self) -> optuna.Study:
        return open_study(self.address, self.plan.name())

    def trials(self) -> list[TrialRecord]:
        return records(self.study())

    def work(self, *, on_trial_end: TrialListener | None = None, display: Display | None = None) -> None:
        """Runs trials until there are enough, beginning with those whose process has died."""
        study = self.study()
        while (taken := self._take(study)) is not None:
            trial, lease = taken
            with lease:
                with nullcontext() if display is None else display(1 + trial.number) as watch:
                    self._perform(study, trial, watch)
                if on_trial_end is not None:
                    on_trial_end(TrialRecord.of(study.get_trials(deepcopy=False)[trial.number]))

    def _alone(self) -> AbstractContextManager[None]:
        return alone(self.folder / "trials" / "lock")

    def _take(self, study: optuna.Study) -> tuple[Trial, ExitStack] | None:
        with self._alone():
            known = study.get_trials(deepcopy=False)
            begun = [each for each in known if each.state != TrialState.WAITING]
            for frozen in (each for each in begun if each.state == TrialState.RUNNING):
                if (lease := self._lease(frozen.number)) is None:
                    continue
                # Its process may have finished it, and released its lease, since the trials were read.
                if study.get_trials(deepcopy=False)[frozen.number].state == TrialState.RUNNING:
                    return self._with_settings(study, Trial(study, frozen._trial_id)), lease
                lease.close()
            if len(begun) == len(known) and len(begun) >= self.plan.total():
                return None
            trial = study.ask()
            lease = self._lease(trial.number)
            assert lease is not None, "nobody else knows of this trial yet"
            return self._with_settings(study, trial), lease

    def _lease(self, number: int) -> ExitStack | None:
        """Held until the stack is closed; None if another live process works on the trial."""
        folder = self.folder / "trials" / f"{number:04}"
        folder.mkdir(exist_ok=True)
        held = ExitStack()
        try:
            held.enter_context(Lease(folder))
        except FolderBusyError:
            return None
        return held

    def _with_settings(self, study: optuna.Study, trial: Trial) -> Trial:
        """Draws the settings of the trial that it does not have yet."""
        for name, allowed in self.plan.space().items():
            # A sampler for each draw: the value does not depend on what this process drew before.
            seed = derive(self.plan.seed, trial.number, name) % 2**32
            study.sampler = TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
            suggest(trial, name, allowed)
        return trial

    def _perform(self, study: optuna.Study, trial: Trial, watch: Watch | None) -> None:
        config, store = self.plan.config(trial.params), Store(self.folder / "runs")
        report = Report(study, trial, self.plan.tasks or sequence_facts(self.plan.sequence).tasks)
        try:
            known = store.find(config)
            for event in known.events() if known is not None else ():
                report(event)
            how: dict[str, Any] = {"data": self.data, "device": self.device, "watch": watch, "listeners": [report]}
            done = _when_free(lambda: run(config, store, tests=False, whole_network=True, **how))
        except (TrialPruned, DivergedError) as error:
            _end_without_value(study, trial, TrialState.PRUNED, str(error))
        except (SoftmaskError, OSError, *GPU_TROUBLE):
            raise  # for example a full disk: the trial is resumed later
        except Exception as error:
            _end_without_value(study, trial, TrialState.FAIL, f"{type(error).__name__}: {error}")
        else:
            study.tell(trial, objective(done))
        _drop_weights(store.root / config.id())


class Report:
    """Listens to a trial's run, reports its accuracy to Optuna after each task, and stops it where Optuna prunes."""

    def __init__(self, study: optuna.Study, trial: Trial, tasks: int) -> None:
        self.trial, self.tasks = trial, tasks
        self._learned: dict[int, int] = {}
        self._rows: dict[int, dict[int, float]] = {}
        self._reported = set(study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def __call__(self, event: dict[str, Any]) -> None:
        if event["kind"] == "task":
            self._learned[event["task"]] = len(event["ids"])
        elif event["kind"] == "accuracy":
            row = self._rows.setdefault(event["after"], {})
            row[event["task"]] = 100 * event["validation"]
            if len(row) == sum(self._learned.values()):
                self._report(event["after"], list(row.values()))

    def _report(self, after: int, accuracies: list[float]) -> None:
        if after not in self._reported:
            self.trial.set_user_attr("reached", mean(accuracies))
            # The sum over the tasks, not their mean: Optuna compares the best value that a trial has had so far, and
            # a mean is best after the first task, before anything could be forgotten.
            self.trial.report(sum(accuracies), after)
            self._reported.add(after)
        if after + 1 < self.tasks and self.trial.should_prune():
            raise TrialPruned(f"after task {after + 1} its accuracy is below the median of the trials before it")


def objective(done: StoredRun) -> float:
    """The value that a search maximises."""
    rows = done.accuracies("validation")
    return mean(rows[max(rows)].values())


def best_of(trials: Iterable[TrialRecord]) -> TrialRecord:
    """The best finished trial; the earliest if several are equal."""
    trials = list(trials)
    finished = [trial for trial in trials if trial.state == "complete"]
    if not finished:
        reasons = [trial.reason for trial in trials if trial.reason]
        raise SoftmaskError("no trial was finished" + (f"; the first said: {reasons[0]}" if reasons else ""))
    return max(finished, key=lambda trial: (trial.value, -trial.number))


def found_settings(search: Search, trials: list[TrialRecord]) -> FoundSettings:
    """The best trial's settings, and how they were found."""
    plan, best = search.plan, best_of(trials)
    by_section = plan.fixed()
    for name, value in best.found.items():
        section, _, key = name.partition(".")
        by_section[section][key] = value
    states = [trial.state for trial in trials]
    defaults = next((trial.value for trial in trials if trial.number == DEFAULTS and trial.state == "complete"), None)
    summary = {
        "objective": OBJECTIVE,
        "value": best.value,
        "trial": best.number,
        "defaults": defaults,
        "trials": len(trials),
        **{state: states.count(state) for state in ("complete", "pruned", "failed")},
        "preset": plan.preset,
        "tasks": plan.tasks,
        "seed": plan.seed,
        "changes": dict(plan.changes),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "softmask": softmask.__version__,
    }
    return FoundSettings(method=plan.method, sequence=plan.sequence, **by_section, found=summary)


def _when_free(work: Callable[[], StoredRun]) -> StoredRun:
    """Two trials may draw the same settings: the later one waits for the run of the earlier."""
    while True:
        try:
            return work()
        except FolderBusyError:
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _end_without_value(study: optuna.Study, trial: Trial, state: TrialState, reason: str) -> None:
    trial.set_user_attr("reason", reason)
    study.tell(trial, state=state)


def _drop_weights(folder: Path) -> None:
    """Deletes the weights of a trial, which are not needed once it has ended."""
    for file in (*folder.glob("checkpoints/*.safetensors"), *folder.glob("progress.safetensors")):
        file.unlink(missing_ok=True)
