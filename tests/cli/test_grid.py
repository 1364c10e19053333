"""`softmask grid`: which cells, what it says, and how it ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from softmask.cli import grid as grid_verb
from softmask.cli.grid import GridDisplay, duration
from softmask.experiments import load_runs
from softmask.experiments.runs.grid import Cell
from softmask.experiments.runs.grid_file import read_grid_file
from softmask.experiments.runs.store import Store
from tests.cli.command import Ended, softmask
from tests.experiments.runs.examples import tiny_config

TINY = ["--sequences", "D-5", "--preset", "short", "--tasks", "2", "--set", "width=0.0625", "--set", "epochs=1"]


def grid(store: Path, *arguments: object) -> Ended:
    return softmask("grid", *TINY, "--store", store, "--executor", "serial", *arguments)


def test_runs_all_cells_and_then_has_nothing_to_do(tmp_path: Path) -> None:
    first = grid(tmp_path, "--methods", "ncl,one", "--seeds", "1-2")
    assert (first.code, first.errors()) == (0, [])
    assert "4 cells: 4 finished, 0 failed" in first.out
    assert "[4/4] one on D-5, seed 2: finished" in first.err
    assert "left" in first.err
    again = grid(tmp_path, "--methods", "ncl,one", "--seeds", "1-2", "--json")
    told = again.json()
    assert [(c["method"], c["seed"], c["state"]) for c in told["cells"]] == [
        (method, seed, "finished") for method in ("ncl", "one") for seed in (1, 2)
    ]
    assert {cell["id"] for cell in told["cells"]} == {run.path.name for run in Store(tmp_path).runs()}
    assert "4 cells, 4 already there" in again.err
    assert all(len(run.events("started")) == 1 for run in Store(tmp_path).runs())


def test_a_failed_cell_is_told_and_the_others_are_run(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('methods = ["hat", "ncl"]\n[method.hat]\ntraining.lr = 1e30\n')
    ended = grid(tmp_path / "store", "--file", file)
    assert ended.code == 1
    assert "2 cells: 1 finished, 1 failed" in ended.out
    (error,) = ended.errors()
    assert error.startswith("error: hat on D-5, seed 1: training on")
    again = grid(tmp_path / "store", "--file", file)
    assert again.code == 1, "a failure stays one"
    assert len(again.errors()) == 1
    assert "0 at" not in again.err
    (failed,) = [run for run in Store(tmp_path / "store").runs() if run.status == "failed"]
    assert len(failed.events("started")) == 1
    grid(tmp_path / "store", "--file", file, "--retry-failed")
    assert len(failed.events("started")) == 2


def test_equal_errors_are_told_once(tmp_path: Path) -> None:
    ended = softmask(
        "grid", "-m", "ncl,spg", "-s", "C-10", "--seeds", "1-3", "--executor", "serial", "--store", tmp_path
    )
    assert ended.code == 1
    (error,) = ended.errors()
    assert "ncl on C-10, seed 1 and 5 more: C-10 needs" in error


def test_dry_run_tells_and_writes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    told = grid(store, "--methods", "ncl,spg", "--seeds", "1-3", "--dry-run")
    assert told.code == 0
    assert "spg on D-5: 3 missing" in told.out
    assert "cells   6: 6 missing" in told.out
    assert [line.split()[0] for line in told.out.splitlines()[-5:]] == ["cells", "time", "memory", "disk", "note"]
    assert told.out.splitlines()[-1] == "note    spg: task ends grow with the number of heads"
    assert not store.exists()
    grid(store, "--methods", "ncl", "--seeds", "2")
    plain = grid(store, "--methods", "ncl,spg", "--seeds", "1-3", "--dry-run", "--json").json()
    assert [cell["state"] for cell in plain["cells"]].count("finished") == 1
    assert plain["seconds"] > 0
    assert plain["memory_bytes"] > 2**20
    assert plain["disk_bytes"] > 0


def test_dry_run_says_where_it_cannot_tell(tmp_path: Path) -> None:
    told = softmask("grid", "-m", "ncl", "-s", "C-10", "--dry-run", "--store", tmp_path)
    assert told.code == 0
    assert "softmask data fetch C-10" in told.out


def test_the_papers_cells_are_known(tmp_path: Path) -> None:
    told = softmask("grid", "--paper", "--dry-run", "--store", tmp_path, "--json")
    plain = told.json()
    assert len(plain["cells"]) == 895
    assert list(plain["left_out"]) == ["cat on I-100"]
    assert "left out: cat on I-100: N/A in the paper" in told.err
    part = softmask("grid", "--paper", "-s", "FE-10", "--seeds", "1", "--dry-run", "--store", tmp_path, "--json").json()
    assert len(part["cells"]) == 20


def test_all_methods_leave_out_what_the_paper_left_out(tmp_path: Path) -> None:
    told = softmask("grid", "-m", "all", "-s", "I-100,C-10", "--dry-run", "--store", tmp_path, "--json").json()
    assert list(told["left_out"]) == ["cat on I-100"]
    named = softmask("grid", "-m", "cat", "-s", "I-100", "--dry-run", "--store", tmp_path, "--json").json()
    assert (len(named["cells"]), named["left_out"]) == (1, {})


def test_settings_files_and_changes_by_hand(tmp_path: Path) -> None:
    folder = tmp_path / "found"
    (folder / "D-5").mkdir(parents=True)
    found = {"format": 1, "method": "spg", "sequence": "D-5", "network": {"drop1": 0.01, "drop2": 0.3}}
    (folder / "D-5" / "spg.json").write_text(json.dumps(found))
    store = tmp_path / "store"
    ended = grid(store, "-m", "spg,ncl", "--settings", folder, "--set", "drop2=0.4", "--tasks", "1")
    assert ended.code == 0
    assert "the defaults are used for ncl on D-5" in ended.err
    drops = {run.config.method: (run.config.network.drop1, run.config.network.drop2) for run in Store(store).runs()}
    assert drops == {"spg": (0.01, 0.4), "ncl": (drops["ncl"][0], 0.4)}
    assert drops["ncl"][0] != 0.01


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", "spg"], "which cells? give --methods and --sequences"),
        (["-m", "spgg", "-s", "D-5"], "did you mean 'spg'?"),
        (["-m", "spg", "-s", "d5"], "did you mean 'D-5'?"),
        (["-m", "spg", "-s", "D-5", "--seeds", "5-1"], "seeds are given as in 1-5"),
        (["-m", "spg", "-s", "D-5", "--executor", "process"], "did you mean 'processes'?"),
        (["-m", "spg,ncl", "-s", "D-5", "--set", "settings.strength=3"], "spg: there is no field 'settings.strength'"),
        (["-m", "spg", "-s", "D-5", "--file", "missing.toml"], "there is no grid file missing.toml"),
        (["-m", "spg", "-s", "D-5", "--keep", "some"], "neither"),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: list[str], told: str) -> None:
    ended = softmask("grid", *arguments, "--store", tmp_path)
    assert ended.code == 2
    assert told in ended.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


def test_cells_are_tracked_in_their_own_processes(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    store = tmp_path / "store"
    options = ["--methods", "ncl", "--sequences", "D-5", "--seeds", "1", "--preset", "short", "--tasks", 1]
    options += ["--set", "width=0.0625", "--set", "epochs=1", "--store", store, "--jobs", 1]
    assert softmask("grid", *options, "--track", "tensorboard").code == 0
    (run,) = Store(store).runs()
    assert list((run.path / "tensorboard").glob("events.out.tfevents.*"))
    assert softmask("grid", *options, "--track", "tensorbord").code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpu"], "'gpu'"),
        (["--executor", "ray", "--device", "mps"], "softmask computes on cpu or cuda, not on mps"),
        (["--executor", "ray", "--device", "cuda:1", "--gpus", 1], "Ray chooses the GPU of a cell: use --device cuda"),
        (["--executor", "ray", "--device", "cuda"], "say with --gpus what share of one each takes"),
    ],
)
def test_a_device_that_cells_cannot_have(tmp_path: Path, arguments: list[object], message: str) -> None:
    ended = grid(tmp_path / "store", "--methods", "ncl", *arguments)
    assert ended.code == 2
    assert message in ended.err
    assert not list(tmp_path.iterdir())


def test_on_a_gpu_cells_run_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_verb, "find_device", lambda name: name)
    workers, measured_on = grid_verb.find_workers("processes", "cuda", jobs=None)
    assert (workers.jobs, measured_on) == (1, "cuda")
    assert grid_verb.find_workers("processes", "cuda", jobs=3)[0].jobs == 3


def test_what_failed_and_is_not_tried_again_takes_no_time(tmp_path: Path) -> None:
    (cell,) = grid(tmp_path, "--methods", "ncl", "--dry-run", "--json").json()["cells"]
    wanted = ["--methods", "ncl", "--dry-run", "--json"]
    config = grid_verb.make_grid(
        grid_verb.GridFile(methods=["ncl"], sequences=["D-5"], preset="short", tasks=2), {"width": 0.0625, "epochs": 1}
    ).configs[0]
    assert config.id() == cell["id"]
    with Store(tmp_path).open(config) as writer:
        writer.event("started")
        writer.event("failed", reason="diverged", message="no finite loss")
    assert grid(tmp_path, *wanted).json()["seconds"] == 0
    assert grid(tmp_path, *wanted, "--retry-failed").json()["seconds"] > 0


def test_with_one_adds_the_reference_of_each_cell(tmp_path: Path) -> None:
    ended = grid(tmp_path, "--methods", "ncl", "--seeds", "1-2", "--with-one", "--json")
    assert ended.code == 0
    assert [(cell["method"], cell["seed"]) for cell in ended.json()["cells"]] == [
        ("one", 1),
        ("ncl", 1),
        ("one", 2),
        ("ncl", 2),
    ]
    found = load_runs(tmp_path)
    assert found.loc[found["method"] == "ncl", "FWT"].notna().all()


def test_changes_of_one_sequence(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(
        'methods = ["ncl"]\nsequences = ["D-5", "R-10"]\n[set]\nbatch = 32\n[sequence."R-10"]\nbatch = 16\nepochs = 4\n'
        "[method.ncl]\ntraining.lr = 0.125\n"
    )
    made = grid_verb.make_grid(read_grid_file(file), {"epochs": 2})
    assert [(c.sequence, c.training.batch, c.training.epochs, c.training.lr) for c in made.configs] == [
        ("D-5", 32, 2, 0.125),
        ("R-10", 16, 2, 0.125),
    ]


def test_a_dry_run_tells_what_it_measures(tmp_path: Path) -> None:
    ended = grid(tmp_path, "--methods", "ncl,one", "--dry-run")
    assert ended.code == 0
    assert "measuring ncl on D-5 (1 of 2)" in ended.err


def test_a_worker_for_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_verb, "find_device", lambda name: name)
    workers, _ = grid_verb.find_workers("processes", "cuda", jobs=None, devices=("0", "3"))
    assert (workers.jobs, workers.devices) == (2, ("0", "3"))  # type: ignore[attr-defined]


@pytest.mark.parametrize("devices", ["0,0", "x", "", "0,-1", "cuda:0"])
def test_wrong_gpus_are_refused(devices: str, tmp_path: Path) -> None:
    ended = grid(tmp_path, "--methods", "ncl", f"--devices={devices}")
    assert (ended.code, len(ended.errors())) == (2, 1)


def test_changed_data_is_told_by_the_command_line(tmp_path: Path) -> None:
    assert grid(tmp_path, "--methods", "ncl", "--changed-data", "maybe").code == 2


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (90000, "1 d 1 h")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(grid_verb, "err", Console(file=written, force_terminal=True, width=100))
    config = tiny_config()
    cells = [Cell(config, "finished"), *[Cell(config, "missing")] * 4]
    with GridDisplay(cells, jobs=2, retry_failed=False) as display:
        for cell in (cells[0], Cell(config, "finished"), Cell(config, "failed", "why")):
            display.ended(cell)
        display._live.refresh()
    shown = written.getvalue()
    last = [line for line in shown.splitlines() if "cells an hour" in line][-1]
    numbers = [part.strip() for part in last.replace("│", "|").split("|")]
    assert numbers[1:6] == ["5", "2", "1", "2", "0"], "cells, finished, failed, running, waiting"
    assert "left" in last
