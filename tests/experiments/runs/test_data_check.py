"""Results of data that have changed since are told and left out until they are run again or accepted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from softmask.experiments.executors import SerialExecutor
from softmask.experiments.runs import data_check
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.data_check import ChangedData, TaskNames, check_sequences, commit_facts
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import StaleDataError, Store, StoreError
from softmask.experiments.sequences import SEQUENCES, sequence, sequence_from
from softmask.learning.seeds import Seeds
from softmask.learning.task import TaskSequence
from tests.cli.command import softmask

TINY = {"network.width": 0.0625, "epochs": 1}


class Data:
    """The data of a registered sequence; may be changed behind its name."""

    shift = 0.0


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Data:
    SEQUENCES.names()
    monkeypatch.setattr(SEQUENCES, "_entries", dict(SEQUENCES._entries))
    found = Data()

    @sequence("shifting-2", tasks=2, classes=2, description="noise")
    def shifting(root: Path | None, seeds: Seeds, tasks: int) -> TaskSequence:
        def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
            labels = torch.arange(count) % 2
            noise = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed + 100 * seeds.split))
            return noise + found.shift + labels.view(-1, 1, 1, 1), labels

        triples = [tuple(samples(count, 10 * task + count) for count in (32, 8, 9)) for task in range(tasks)]
        return sequence_from("shifting-2", triples)  # type: ignore[arg-type]

    return found


def config(method: str = "ncl", seed: int = 1) -> RunConfig:
    return make_config(method, "shifting-2", preset="short", seed=seed, changes=TINY)


@pytest.mark.parametrize("method", ["ncl", "mtl"])
def test_a_finished_run_is_compared_with_the_data_that_are_there_now(method: str, data: Data, tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(config(method), store)
    data.shift = 1.0
    with pytest.raises(StaleDataError):
        run(config(method), store)
    assert list(store.runs()) == []
    (problem,) = store.problems()
    assert "--changed-data" in problem
    (cell,) = Grid((config(method),)).run(store, SerialExecutor())
    assert cell.state == "failed"
    data.shift = 0.0
    run(config(method), store)
    assert len(list(store.runs())) == 1, "the old data are back"


@pytest.mark.parametrize("through", ["run", "grid"])
@pytest.mark.parametrize(("policy", "weights_change"), [("accept", False), ("rerun", True)])
def test_run_again_or_accepted(
    through: str, policy: ChangedData, weights_change: bool, data: Data, tmp_path: Path
) -> None:
    store = Store(tmp_path)
    before = run(config(), store).events("finished")[0]["weights"]
    data.shift = 1.0
    for _ in range(2):  # the second time there is nothing to decide
        if through == "run":
            run(config(), store, changed_data=policy)
        else:
            (cell,) = Grid((config(),)).run(store, SerialExecutor(), changed_data=policy)
            assert cell.state == "finished"
    (found,) = store.runs()
    assert (found.events("finished")[0]["weights"] != before) == weights_change
    assert len(found.events("started")) == 1
    assert len(list(tmp_path.glob(".replaced/*"))) == weights_change
    run(config(), store)
    data.shift = 2.0
    with pytest.raises(StaleDataError):
        run(config(), store)


def test_seeds_of_old_and_new_data_do_not_stand_in_one_row(data: Data, tmp_path: Path) -> None:
    store = Store(tmp_path)
    run(config(seed=1), store)
    data.shift = 1.0
    run(config(seed=2), store)
    with pytest.warns(UserWarning, match="left out of tables"):
        check_sequences(store, ["shifting-2"], TaskNames(None))
    assert [found.config.seeds.order for found in store.runs()] == [2]


def test_an_unfinished_run_does_not_go_on_with_other_data(data: Data, tmp_path: Path) -> None:
    store = Store(tmp_path)

    def stop(event: dict[str, object]) -> None:
        if event["kind"] == "task":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config(), store, listeners=[stop])
    data.shift = 1.0
    for policy in ("refuse", "accept"):
        with pytest.raises(StoreError):
            run(config(), store, changed_data=policy)
    assert run(config(), store, changed_data="rerun").finished


def test_the_commit_and_whether_files_were_changed_since(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", "-C", tmp_path, *who, *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    names = ["code", "changed", "strange"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").touch()
    assert commit_facts(tmp_path / "code" / "module.py") == {}, "no repository"
    commit_facts.cache_clear()
    git("init", "-q")
    git("add", "code", "changed")
    git("commit", "-q", "-m", "begin")
    (tmp_path / "changed" / "module.py").write_text("x = 1")
    facts = {name: commit_facts(tmp_path / name / "module.py") for name in names}
    head = git("rev-parse", "HEAD")
    assert facts == {
        "code": {"commit": head, "dirty": False},
        "changed": {"commit": head, "dirty": True},
        "strange": {},
    }


def test_a_start_records_the_commit(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"commit": "0123", "dirty": True}
    monkeypatch.setattr(data_check, "commit_facts", lambda file: facts)
    (started,) = run(config(), Store(tmp_path)).events("started")
    assert facts.items() <= started.items()


def test_the_command_line_tells_a_run_again_from_one_that_was_finished(data: Data, tmp_path: Path) -> None:
    options = ["run", "--method", "ncl", "--sequence", "shifting-2", "--preset", "short", "--store", tmp_path]
    options += ["--set", "width=0.0625", "--set", "epochs=1"]
    assert softmask(*options).code == 0
    assert "already finished" in softmask(*options).err
    data.shift = 1.0
    assert softmask(*options).code == 1
    again = softmask(*options, "--changed-data", "rerun")
    assert again.code == 0
    assert "already finished" not in again.err
    assert "already finished" in softmask(*options).err
