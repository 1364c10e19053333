"""Which runs a grid makes, how far each is, and running what is missing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from softmask.errors import UnknownName
from softmask.experiments.executors import WORKER_DIED, Outcome, SerialExecutor
from softmask.experiments.runs import grid as grids
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.grid import Grid, look, paper_grid
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.storage.lease import FolderBusyError
from tests.experiments.runs.examples import TINY, outcome, tiny_config


def tiny_grid(methods: list[str], seeds: Iterable[int] = (1,), **changes: Any) -> Grid:
    changed = {**TINY, "epochs": 1, **changes}
    return Grid.of(methods, ["D-5"], list(seeds), preset="short", tasks=2, changes=changed)


def test_every_method_on_every_sequence_with_every_seed() -> None:
    made = Grid.of(["spg", "ncl", "spg"], ["D-5", "R-10"], [1, 2, 2], preset="short", tasks=3)
    assert [(c.sequence, c.method, c.seeds.order) for c in made.configs] == [
        (sequence, method, seed) for sequence in ("D-5", "R-10") for method in ("spg", "ncl") for seed in (1, 2)
    ]
    assert {(c.tasks, c.training.epochs) for c in made.configs} == {(3, 10)}
    with pytest.raises(UnknownName, match="did you mean 'spg'"):
        Grid.of(["spgg"], ["D-5"], [1])


def test_seeds_set_by_hand_stay() -> None:
    made = Grid.of(["spg"], ["D-5"], [1, 2], changes={"seeds.order": 0, "seeds.split": 1})
    assert list(made.configs) == [
        make_config("spg", "D-5", seed=seed, changes={"seeds.order": 0, "seeds.split": 1}) for seed in (1, 2)
    ]


def test_seeds_that_are_all_set_by_hand_make_one_run_and_that_is_told() -> None:
    by_hand = {f"seeds.{name}": 7 for name in ("order", "split", "init", "batches")}
    made = Grid.of(["spg"], ["D-5"], [1, 2, 3], changes=by_hand)
    assert len(made.configs) == 1
    assert list(made.left_out) == ["2 seeds of spg on D-5"]
    assert Grid.of(["spg"], ["D-5"], [1, 1]).left_out == {}


def test_changes_may_depend_on_the_cell() -> None:
    made = Grid.of(["spg", "hat"], ["D-5"], [1], changes=lambda method, _: {"lr_min": 0.1} if method == "hat" else {})
    assert [config.training.lr_min for config in made.configs] == [1e-3, 0.1]


def test_the_papers_cells() -> None:
    made = paper_grid()
    ablations = [c for c in made.configs if c.method in ("spg-no-chi", "spg-no-smh", "spg-hard")]
    assert (len(made.configs), len(ablations)) == (895, 135)
    assert len({config.id() for config in made.configs}) == 895
    assert {config.seeds.order for config in made.configs} == {1, 2, 3, 4, 5}
    assert not [c for c in made.configs if (c.method, c.sequence) == ("cat", "I-100")]
    (reason,) = made.left_out.values()
    assert list(made.left_out) == ["cat on I-100"]
    assert "square of the number of tasks" in reason


def test_cat_on_i_100_only_if_named() -> None:
    assert paper_grid(methods=["cat"]).left_out != {}
    assert len(paper_grid(methods=["cat"], sequences=["I-100"]).configs) == 5
    assert len(Grid.of(["cat"], ["I-100", "C-10"], [1]).configs) == 2


def test_runs_what_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    store, grid = Store(tmp_path), tiny_grid(["ncl", "spg"], (1, 2))
    first = run(grid.configs[1], store)
    assert [cell.state for cell in grid.cells(store)] == ["missing", "finished", "missing", "missing"]
    ended = list(grid.run(store, SerialExecutor()))
    assert [cell.state for cell in ended] == ["finished"] * 4
    assert len(first.events("started")) == 1
    again = list(grid.run(store, SerialExecutor()))
    assert [cell.config for cell in again] == list(grid.configs)
    assert all(len(stored.events("started")) == len(stored.events("finished")) == 1 for stored in store.runs())


def test_a_failed_cell_is_a_result_and_retried_on_request(tmp_path: Path) -> None:
    """A learning rate beyond reason diverges."""
    store = Store(tmp_path)
    good, bad = tiny_grid(["ncl"]).configs[0], tiny_grid(["one"], lr=1e30).configs[0]
    grid = Grid((bad, good))
    ended = list(grid.run(store, SerialExecutor()))
    assert [(cell.config, cell.state) for cell in ended] == [(bad, "failed"), (good, "finished")]
    assert "diverged" in str(ended[0].error)
    assert look(bad, store) == ended[0]
    starts = lambda: len(Store(tmp_path).find(bad).events("started"))  # type: ignore[union-attr] # noqa: E731
    assert starts() == 1
    assert {cell.state for cell in grid.run(store, SerialExecutor())} == {"failed", "finished"}
    assert starts() == 1, "not tried again unasked"
    list(grid.run(store, SerialExecutor(), retry_failed=True))
    assert starts() == 2


def test_missing_data_fail_the_cell_now_and_not_for_ever(tmp_path: Path) -> None:
    grid = Grid.of(["ncl"], ["C-10"], [1])
    (cell,) = grid.run(Store(tmp_path), SerialExecutor())
    assert cell.state == "failed"
    assert "--data" in str(cell.error)
    assert grid.cells(Store(tmp_path))[0].state == "missing"


def test_a_damaged_folder_is_told_and_left_alone(tmp_path: Path) -> None:
    grid = tiny_grid(["ncl"])
    (tmp_path / grid.configs[0].id()).mkdir()
    (tmp_path / grid.configs[0].id() / "config.json").write_text("{")
    (cell,) = grid.run(Store(tmp_path), SerialExecutor())
    assert (cell.state, "config.json cannot be read" in str(cell.error)) == ("failed", True)


def held_elsewhere(store: Store, config: RunConfig) -> Path:
    """A lease as a process on another machine holds it."""
    with store.open(config) as writer:
        lease = writer.path / "lease.json"
        content = json.loads(lease.read_text())
    lease.write_text(json.dumps({**content, "token": "theirs", "machine": "elsewhere", "host": "elsewhere"}))
    return lease


def test_a_cell_that_another_process_writes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, grid = Store(tmp_path), tiny_grid(["ncl", "spg"])
    lease = held_elsewhere(store, grid.configs[0])
    looks = []

    def finish_elsewhere(_: float) -> None:
        looks.append(grid.cells(store)[0].state)
        if len(looks) == 2:
            lease.unlink()
            run(grid.configs[0], store)

    monkeypatch.setattr(grids.time, "sleep", finish_elsewhere)
    ended = list(grid.run(store, SerialExecutor()))
    assert looks == ["running", "running"]
    assert [(cell.config, cell.state, cell.elsewhere) for cell in ended] == [
        (grid.configs[1], "finished", False),
        (grid.configs[0], "finished", True),
    ]


def test_a_cell_whose_process_died_elsewhere_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeat stops; so it is run here from where it was."""
    store, grid = Store(tmp_path / "cut"), tiny_grid(["spg"])
    lease = held_elsewhere(store, grid.configs[0])
    monkeypatch.setattr(grids.time, "sleep", lambda _: os.utime(lease, (0, 0)))
    (cell,) = grid.run(store, SerialExecutor())
    assert (cell.state, cell.elsewhere) == ("finished", False)
    whole = run(grid.configs[0], Store(tmp_path / "whole"))
    assert outcome(store.find(grid.configs[0])) == outcome(whole)  # type: ignore[arg-type]


class Unlucky:
    """An executor that meets somebody else in the folder first, then loses its workers."""

    jobs = 1

    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Outcome[Any, Any]]:
        for item in items:
            yield Outcome(item, error="bad luck", kind=self.kinds.pop(0)) if self.kinds else Outcome(item)


def test_a_busy_folder_met_by_a_worker_is_tried_later(tmp_path: Path) -> None:
    (cell,) = tiny_grid(["ncl"]).run(Store(tmp_path), Unlucky(FolderBusyError.__name__))
    assert cell.state == "finished"


def test_a_cell_whose_workers_died_has_failed_and_is_tried_again_at_the_next_start(tmp_path: Path) -> None:
    store, grid = Store(tmp_path), tiny_grid(["ncl"])
    (cell,) = grid.run(store, Unlucky(WORKER_DIED))
    assert cell.state == "failed"
    assert (cell.error or "").startswith("bad luck; the same command")
    assert [each.state for each in grid.cells(store)] == ["begun"]
    (again,) = grid.run(store, SerialExecutor())
    assert again.state == "finished"


def test_a_run_that_another_process_finished_in_between_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, config = Store(tmp_path), tiny_config("ncl")
    done = run(config, store)
    monkeypatch.setattr(Store, "find", lambda *_, **__: None)  # as if we had looked before it was there
    assert run(config, store).path == done.path
    assert len(done.events("started")) == len(done.events("finished")) == 1
