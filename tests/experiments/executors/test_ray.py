"""Ray: a node that dies is survived, and the results are those of a serial run, to the bit."""

from __future__ import annotations

import builtins
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softmask.experiments.executors import ExecutorError, ProcessExecutor, RayExecutor, SerialExecutor
from softmask.experiments.runs.grid import Grid
from softmask.experiments.runs.store import Store
from tests.experiments.executors.clusters import NODE, loopback_cluster
from tests.experiments.executors.work import call, killed, killed_once, square
from tests.experiments.runs.examples import TINY, outcome


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "ray":
            raise ImportError(name)
        return usual(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ExecutorError, match=r"pip install 'softmask\[ray\]'"):
        list(RayExecutor().map(square, [1]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with loopback_cluster() as cluster:
        yield cluster


def outcomes_in(store: Store) -> dict[str, Any]:
    return {run.path.name: outcome(run) for run in store.runs()}


@pytest.mark.slow
def test_workers_that_are_killed_are_replaced(cluster: Any, tmp_path: Path) -> None:
    executor = RayExecutor(address=cluster.address, attempts=2)
    jobs = [(killed_once, tmp_path / "mark"), (killed, 0), (square, 3)]
    found = {each.item[0]: each for each in executor.map(call, jobs)}
    assert (found[killed_once].result, found[square].result) == ("second attempt", 9)
    assert found[killed].kind == "WorkerDied"
    assert "\n" not in str(found[killed].error)


@pytest.mark.slow
def test_what_no_node_has_is_refused(cluster: Any) -> None:
    with pytest.raises(ExecutorError, match="has 64 CPU: the largest has 1"):
        list(RayExecutor(address=cluster.address, cpus=64).map(square, [1]))


@pytest.mark.slow
def test_serial_pool_and_ray_give_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    changes = {**TINY, "epochs": 1}
    grid = Grid.of(["ncl", "ewc", "hat", "wsn", "spg"], ["D-5"], [1, 2, 3], preset="short", changes=changes)
    executors = {
        "serial": SerialExecutor(),
        "pool": ProcessExecutor(jobs=2),
        "ray": RayExecutor(address=cluster.address),
    }
    found = {}
    for name, executor in executors.items():
        store = Store(tmp_path / name)
        assert {cell.state for cell in grid.run(store, executor)} == {"finished"}
        found[name] = outcomes_in(store)
    assert len(found["serial"]) == 15
    assert found["serial"] == found["pool"] == found["ray"]


@pytest.mark.slow
def test_a_node_dies_in_the_middle(cluster: Any, tmp_path: Path) -> None:
    grid = Grid.of(["ncl", "spg"], ["D-5"], [1, 2], preset="short", tasks=2, changes={**TINY, "epochs": 30})
    store = Store(tmp_path / "ray")
    second = cluster.add_node(**NODE)
    cluster.wait_for_nodes()

    def strike() -> None:
        deadline = time.monotonic() + 600  # Ray gives its workers low priority
        while len(at_work(store)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        cluster.remove_node(second, allow_graceful=False)

    striker = threading.Thread(target=strike)
    striker.start()
    states = {cell.state for cell in grid.run(store, RayExecutor(address=cluster.address))}
    striker.join()
    assert states == {"finished"}
    resumed = [run for run in store.runs() if len(run.events("started")) > 1]
    assert resumed, "the cell of the dead node was continued on the other"
    assert all(len(run.events("finished")) == 1 for run in store.runs())
    whole = Store(tmp_path / "serial")
    assert {cell.state for cell in grid.run(whole, ProcessExecutor(jobs=2))} == {"finished"}
    assert outcomes_in(store) == outcomes_in(whole)


def at_work(store: Store) -> list[Path]:
    """The folders of runs that are in the middle: leased, with some epochs behind them."""
    found = []
    for lease in store.root.glob("*/lease.json"):
        events = lease.with_name("events.jsonl")
        kinds = [json.loads(line)["kind"] for line in events.read_text().splitlines()] if events.exists() else []
        if kinds.count("epoch") >= 3:
            found.append(lease.parent)
    return found
