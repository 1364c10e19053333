"""One run in two processes, as `torchrun` starts them, ends as in one process, to rounding."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import RunConfig, make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store, StoredRun
from softmask.learning.device import require_begun_here
from softmask.learning.method import Step
from softmask.learning.processes import Processes
from softmask.testing import SMALL
from tests.learning.tiny import tiny_task

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")
ROOT = Path(__file__).parents[3]
PART = """
import os
import sys
import torch
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.testing import SMALL

torch.set_num_threads(1)
class Stop(Exception): ...
def stop_at(event):
    if event["kind"] == "epoch" and (event["task"], event["epoch"]) == (1, 1):
        raise Stop
method, store, stopped, drop = sys.argv[1:]
config = make_config(method, "D-5", preset="short", tasks=2, changes=SMALL | {"drop1": float(drop), "drop2": 0.0})
done = run(config, Store(store), listeners=[stop_at] if stopped == "stopped" else [])
assert done.finished
os._exit(0)  # gloo's threads now and then abort a process that ends while the other one is leaving
"""


def wanted(method: str, drop: float = 0.0) -> RunConfig:
    return make_config(method, "D-5", preset="short", tasks=2, changes=SMALL | {"drop1": drop, "drop2": 0.0})


def in_two(method: str, store: Path, *, stopped: bool = False, drop: float = 0.0) -> StoredRun | None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    given = [sys.executable, "-c", PART, method, str(store), "stopped" if stopped else "whole", str(drop)]
    both = [
        subprocess.Popen(
            given,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        told = both[0].communicate(timeout=120)[1]
        if stopped:  # as `torchrun` does when one process fails
            both[1].kill()
        else:
            told += both[1].communicate(timeout=120)[1]
    finally:
        for each in both:
            each.kill()
            each.wait()
    assert (both[0].returncode != 0) is stopped, told
    return Store(store).find(wanted(method, drop))


def state(done: StoredRun) -> dict[str, torch.Tensor]:
    return {name: value for name, value in done.checkpoint(1).items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize("method", ["spg", pytest.param("ewc", marks=pytest.mark.slow)])
def test_two_processes_end_as_one(method: str, tmp_path: Path) -> None:
    alone, together = run(wanted(method), Store(tmp_path / "alone")), in_two(method, tmp_path / "together")
    assert together is not None
    assert together.finished
    for name, value in state(alone).items():
        torch.testing.assert_close(state(together)[name], value, rtol=1e-3, atol=1e-4)
    losses = [[event["train_loss"] for event in done.events("epoch")] for done in (alone, together)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert together.events("started")[0]["processes"] == 2
    with pytest.raises(SoftmaskError):
        require_begun_here(together.events("started"), torch.device("cpu"))


@pytest.mark.slow
def test_an_interruption_and_dropout(tmp_path: Path) -> None:
    """Each process draws its own dropout, and the same again after a kill."""
    whole = in_two("ncl", tmp_path / "whole", drop=0.3)
    cut = in_two("ncl", tmp_path / "cut", stopped=True, drop=0.3)
    assert cut is not None
    assert not cut.finished
    cut = in_two("ncl", tmp_path / "cut", drop=0.3)
    assert whole is not None
    assert cut is not None
    assert cut.events("finished")[0]["weights"] == whole.events("finished")[0]["weights"]
    assert cut.without_id() == whole.without_id()


def test_parts_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    task, seen = tiny_task(), []
    for rank in range(3):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        own, share = Processes().part(Step(task, torch.arange(4.0), torch.arange(4)))
        seen.append((own.y.tolist(), share))
        alone = Processes().part(Step(task, torch.zeros(1), torch.tensor([7])))
        assert (alone[0].y.tolist(), alone[1]) == ([7], 1.0 if rank == 0 else 0.0)
    assert seen == [([0, 3], 0.5), ([1], 0.25), ([2], 0.25)]
