"""Two processes with their own batches remember the use that one process finds on all batches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from softmask import SubspaceMask
from tests.core.examples import assert_close, same, small_batches

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


def _used(own: slice, rank: int | None) -> dict[str, torch.Tensor]:
    torch.manual_seed(11)
    mask = SubspaceMask(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)), rank=rank)
    mask.consolidate(small_batches((5, 3, 4))[own])
    return mask.used


def _process(process: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=process, world_size=2, timeout=timedelta(seconds=120))
    own = slice(0, 1) if process == 0 else slice(1, 3)
    torch.save([_used(own, rank) for rank in (None, 4)], f"{folder}/{process}.pt")
    dist.destroy_process_group()


def test_processes_end_with_the_same_use_as_one_alone(tmp_path: Path) -> None:
    mp.spawn(_process, (str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{process}.pt", weights_only=True) for process in range(2))
    full, low = _used(slice(None), None), _used(slice(None), 4)
    assert same(first[0], second[0])
    assert same(first[1], second[1])
    assert_close(first[0], full, 1e-9)
    squares = [{name: f @ f.transpose(1, 2) for name, f in each.items()} for each in (first[1], low)]
    for name in ("0", "2"):
        torch.testing.assert_close(squares[0][name], squares[1][name], rtol=0.1, atol=0.1)
