"""The Python door: a run, a grid and a search from Python, and stored runs as a DataFrame."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from softmask.errors import ConfigError, SoftmaskError
from softmask.experiments import grid, load_runs, run, search
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.store import StaleDataError, Store
from softmask.experiments.sequences import sequence_from
from softmask.learning.task import TaskSequence

TINY = {"network.width": 0.0625, "epochs": 1}


def own(name: str = "bright-2", *, brighter: float = 1.0, tasks: int = 2) -> TaskSequence:
    def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(count) % 2
        noise = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))
        return noise + brighter * labels.view(-1, 1, 1, 1), labels

    triples = [tuple(samples(count, 10 * task + count) for count in (32, 8, 9)) for task in range(tasks)]
    return sequence_from(name, triples)  # type: ignore[arg-type]


def test_a_run_from_python_is_that_of_the_command_line(tmp_path: Path) -> None:
    done = run("spg", "D-5", preset="short", tasks=3, set=TINY, store=tmp_path)
    assert done.config == make_config("spg", "D-5", preset="short", tasks=3, changes=TINY)
    matrix = done.matrix()
    assert matrix.shape == (3, 3)
    assert list(matrix.index) == list(matrix.columns) == [1, 2, 3]
    assert done.run.accuracies()[2][0] == matrix.loc[3, 1]
    assert pd.isna(matrix.loc[1, 2])
    assert done.accuracy == pytest.approx(matrix.loc[3].mean())
    assert done.backward_transfer == pytest.approx(((matrix.loc[3] - matrix.to_numpy().diagonal())[:2]).mean())
    assert done.forward_transfer is None


def test_an_object_in_a_run_out(tmp_path: Path) -> None:
    sequence = own()
    assert make_config("spg", sequence).sequence == "bright-2"
    done = run("spg", sequence, preset="short", set=TINY, store=tmp_path)
    assert done.matrix().shape == (2, 2)
    (row,) = load_runs(tmp_path).to_dict("records")
    assert (row["method"], row["sequence"], row["status"]) == ("spg", "bright-2", "finished")
    assert row["ACC"] == pytest.approx(done.accuracy)
    assert len(run("spg", sequence, preset="short", set=TINY, store=tmp_path).run.events("started")) == 1


def test_an_object_of_other_data_is_not_taken_for_the_same(tmp_path: Path) -> None:
    first = run("ncl", own(), preset="short", set=TINY, store=tmp_path)
    with pytest.raises(StaleDataError):
        run("ncl", own(brighter=2.0), preset="short", set=TINY, store=tmp_path)
    with pytest.warns(UserWarning, match="left out"):
        assert load_runs(tmp_path).empty
    again = run("ncl", own(), preset="short", set=TINY, store=tmp_path)
    assert again.path == first.path
    assert len(load_runs(tmp_path)) == 1, "the old data are back"


def test_an_object_must_not_have_the_name_of_another_sequence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        make_config("spg", own("D-5"))
    with pytest.raises(ConfigError):
        make_config("spg", own(), tasks=3)
    with pytest.raises(SoftmaskError):
        run("spg", "bright-2", store=tmp_path)


def test_a_grid_gives_its_runs_and_load_runs_all(tmp_path: Path) -> None:
    options = {"preset": "short", "tasks": 2, "set": TINY, "store": tmp_path}
    run("hat", "D-5", **options)  # type: ignore[arg-type]
    found = grid(["one", "ncl"], ["D-5"], seeds=(1, 2), **options)  # type: ignore[arg-type]
    assert sorted(zip(found["method"], found["seed"], strict=True)) == [("ncl", 1), ("ncl", 2), ("one", 1), ("one", 2)]
    assert found.loc[found["method"] == "ncl", "FWT"].notna().all()
    everything = load_runs(tmp_path)
    assert set(everything["method"]) == {"hat", "ncl", "one"}
    assert (everything["time"] > 0).all()
    assert (everything["memory"] > 1).all()
    assert all(Path(path).is_dir() for path in everything["path"])


def test_a_run_that_is_not_finished_has_no_measures(tmp_path: Path) -> None:
    with Store(tmp_path).open(make_config("ncl", "D-5")):
        pass
    (row,) = load_runs(tmp_path).to_dict("records")
    assert row["status"] == "unfinished"
    assert pd.isna(row["ACC"])


def test_a_search_from_python(tmp_path: Path) -> None:
    found = search("ewc", "D-5", trials=2, preset="short", tasks=1, set=TINY, dropout=False, store=tmp_path)
    trials = found.trials()
    assert len(trials) == 2
    assert found.value == trials["value"].max()
    assert "settings.strength" in found.settings


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = "import sys, softmask.experiments; print([name for name in ('torch', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
