"""Two processes with their own batches end with the importance that one process finds on all batches."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from softmask import SoftMask, fisher_importance
from tests.core import oracle
from tests.core.examples import Batch, Roundabout, assert_close, same, small_batches

RANKS = 2
pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


def _network(plain: bool = False) -> tuple[nn.Module, list[nn.Module]]:
    torch.manual_seed(11)
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)]
    return (nn.Sequential if plain else Roundabout)(*layers), [nn.Linear(6, 3) for _ in range(4)]


def _batches() -> list[Batch]:
    return small_batches((5, 5, 5, 5, 5, 5))


def _own_batches(rank: int, share: tuple[int, int]) -> list[Batch]:
    return _batches()[: share[0]] if rank == 0 else _batches()[share[0] : sum(share)]


def _consolidated(rank: int, share: tuple[int, int], plain: bool = False, wrapped: bool = False) -> dict[str, Any]:
    backbone, heads = _network(plain)
    mask = SoftMask(DistributedDataParallel(backbone) if wrapped else backbone)
    mask.consolidate(_own_batches(rank, share), heads[3], heads[:3])
    return mask.importance


def _refused(rank: int, plain: bool, through_old_head: bool) -> dict[str, Any]:
    """One process alone meets a gradient that is not finite."""
    backbone, heads = _network(plain)
    mask = SoftMask(backbone)
    mask.consolidate(_own_batches(rank, (3, 3)), heads[3], heads[:3])
    before = dict(mask.importance)
    if rank == 1:
        with torch.no_grad():
            heads[0 if through_old_head else 3].weight[0, 0] = math.nan
    try:
        mask.consolidate(_own_batches(rank, (3, 3)), heads[3], heads[:3])
    except FloatingPointError as error:
        return {"error": str(error), "kept": same(mask.importance, before)}
    return {"error": None}


def _no_batches_anywhere() -> str | None:
    backbone, heads = _network()
    try:
        SoftMask(backbone).consolidate([], heads[3], heads[:3])
    except ValueError as error:
        return str(error)
    return None


def _fisher(rank: int, share: tuple[int, int]) -> dict[str, Any]:
    backbone, heads = _network()
    return fisher_importance(
        backbone, _own_batches(rank, share), lambda x, y: F.cross_entropy(heads[3](backbone(x)), y)
    )


def _trained(rank: int) -> dict[str, Any]:
    """Data-parallel training: masked after the gradients are averaged, so all processes stay alike."""
    backbone, heads = _network()
    wrapped = DistributedDataParallel(backbone)
    mask = SoftMask(wrapped)
    mask.consolidate(_own_batches(rank, (3, 3)), heads[3])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with mask.attach(optimizer):
        for x, y in _own_batches(rank, (3, 3)):
            optimizer.zero_grad()
            F.cross_entropy(heads[3](wrapped(x)), y).backward()
            optimizer.step()
    return {name: p.detach() for name, p in backbone.named_parameters()}


def _process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    # Processes that do not go the same way would wait for each other: then it is an error soon.
    patience, meeting = timedelta(seconds=60), f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=patience)
    try:
        results = {
            "equal": _consolidated(rank, (3, 3)),
            "plain": _consolidated(rank, (3, 3), plain=True),
            "wrapped": _consolidated(rank, (3, 3), wrapped=True),
            "fewer": _consolidated(rank, (4, 1)),
            "fewer plain": _consolidated(rank, (4, 1), plain=True),
            "none": _consolidated(rank, (4, 0)),
            "fisher": _fisher(rank, (3, 3)),
            "fisher none": _fisher(rank, (4, 0)),
            "trained": _trained(rank),
            "no batches": _no_batches_anywhere(),
            "refused": [_refused(rank, plain, old) for plain in (False, True) for old in (False, True)],
        }
        torch.save(results, folder / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """One run of both processes serves all tests: starting them is what takes time."""
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(_process, args=(folder,), nprocs=RANKS, join=True)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("case", "count", "plain"),
    [
        ("equal", 6, False),
        ("plain", 6, True),
        ("wrapped", 6, False),
        ("fewer", 5, False),
        ("fewer plain", 5, True),
        ("none", 4, False),
    ],
)
def test_all_processes_find_the_importance_of_all_batches(
    results: list[dict[str, Any]], case: str, count: int, plain: bool
) -> None:
    backbone, heads = _network(plain)
    assert same(results[0][case], results[1][case])
    assert_close(results[0][case], oracle.task_importance(backbone, _batches()[:count], heads[3], heads[:3]))


@pytest.mark.parametrize(("case", "count"), [("fisher", 6), ("fisher none", 4)])
def test_fisher_information_of_all_batches(results: list[dict[str, Any]], case: str, count: int) -> None:
    backbone, heads = _network()
    assert same(results[0][case], results[1][case])
    expected = oracle.fisher(
        backbone, _batches()[:count], lambda x, y: F.cross_entropy(heads[3](backbone(x)), y), full_batch=5
    )
    assert_close(results[0][case], expected)


def test_what_one_process_cannot_measure_all_refuse(results: list[dict[str, Any]]) -> None:
    for of_rank in results:
        assert all(case["error"] is not None and "not finite" in case["error"] for case in of_rank["refused"])
        assert all(case["kept"] for case in of_rank["refused"])
    assert [case["error"] for case in results[0]["refused"]] == [case["error"] for case in results[1]["refused"]]


def test_no_batches_anywhere_is_an_error_everywhere(results: list[dict[str, Any]]) -> None:
    assert all("no samples" in (of_rank["no batches"] or "") for of_rank in results)


def test_masked_data_parallel_training_keeps_all_processes_alike(results: list[dict[str, Any]]) -> None:
    assert same(results[0]["trained"], results[1]["trained"])
    backbone, _ = _network()
    assert not same(results[0]["trained"], {name: p.detach() for name, p in backbone.named_parameters()})
