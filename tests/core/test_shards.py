"""Parameters sharded over two processes (FSDP2): the same mask and the same training as in one process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from softmask import SoftMask, fisher_importance
from tests.core.examples import Batch, small_batches

RANKS, TASKS = 2, 3
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
]


def network() -> tuple[nn.Module, list[nn.Linear]]:
    torch.manual_seed(11)
    # Seven rows over two processes: parts of unequal size; a bias of one: a process without any part.
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 1), nn.Tanh(), nn.Linear(1, 6)), [
        nn.Linear(6, 3) for _ in range(TASKS)
    ]


def batches() -> list[Batch]:
    return small_batches((5, 5, 5, 5))


def learn(backbone: nn.Module, heads: list[nn.Linear], precision: Any, together: bool) -> SoftMask:
    """Every process trains on the same batches, so that the mean of their gradients is that of one process."""
    mask = SoftMask(backbone, precision=precision)
    for task, head in enumerate(heads):
        optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=0.01, weight_decay=0.1)
        with mask.attach(optimizer, head=head, scale="update" if together else "auto"):
            for x, y in batches():
                optimizer.zero_grad()
                F.cross_entropy(head(backbone(x)), y).backward()
                optimizer.step()
        optimizer.zero_grad()
        mask.consolidate(batches(), head, previous_heads=heads[:task])
        assert all(parameter.grad is None for parameter in [*backbone.parameters(), *head.parameters()])
    return mask


def facts(mask: SoftMask) -> dict[str, Any]:
    def whole(tensor: Any) -> torch.Tensor:
        return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()

    return {
        "weights": {name: whole(p) for name, p in mask.parameters().items()},
        "importance": {name: whole(t) for name, t in mask.importance.items()},
        "mean": mask.mean(),
        "blocked": mask.blocked(),
    }


def _process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS, timeout=timedelta(seconds=120))
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        found: dict[str, Any] = {}
        for precision in ("float32", "uint8"):
            backbone, heads = network()
            mesh = init_device_mesh("cpu", (RANKS,))
            for layer in backbone:  # type: ignore[attr-defined]
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=mesh)
            fully_shard(backbone, mesh=mesh)
            mask = learn(backbone, heads, precision, together=True)
            parts = [tensor.to_local().numel() for tensor in mask.importance.values()]  # type: ignore[attr-defined]
            found[precision] = facts(mask) | {"parts": parts}
            restarted = SoftMask(backbone, precision=precision)  # type: ignore[arg-type]
            restarted.load_state_dict(mask.state_dict())
            found[precision]["restarted"] = restarted.mean()
        try:
            fisher_importance(backbone, batches(), lambda x, y: F.cross_entropy(heads[0](backbone(x)), y))
        except NotImplementedError as error:
            found["fisher"] = str(error)
        torch.save(found, folder / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shards")
    mp.spawn(_process, args=(folder,), nprocs=RANKS, join=True)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("precision", ["float32", "uint8"])
def test_the_same_as_in_one_process(results: list[dict[str, Any]], precision: Any) -> None:
    expected = facts(learn(*network(), precision, together=False))
    for found in (of_rank[precision] for of_rank in results):
        for kind in ("weights", "importance"):
            for name, tensor in expected[kind].items():
                close = {"atol": 1e-4, "rtol": 1e-4} if precision == "float32" else {"atol": 5e-3, "rtol": 1e-3}
                torch.testing.assert_close(found[kind][name], tensor, **close)
        assert found["mean"] == pytest.approx(expected["mean"], abs=1e-4 if precision == "float32" else 5e-3)
        assert found["blocked"] == pytest.approx(expected["blocked"], abs=0.02)
        assert found["restarted"] == found["mean"]


def test_each_process_keeps_its_own_part(results: list[dict[str, Any]]) -> None:
    one, two = (sum(of_rank["float32"]["parts"]) for of_rank in results)
    backbone, _ = network()
    assert one + two == sum(p.numel() for p in backbone.parameters())
    assert min(one, two) > 0


def test_fisher_information_is_refused(results: list[dict[str, Any]]) -> None:
    assert all("sharded" in of_rank["fisher"] for of_rank in results)
