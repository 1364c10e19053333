"""An optimizer that raises half-way through a step: what it did until then is masked like a whole step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from softmask import SoftMask


class HalfWay(torch.optim.AdamW):
    """Moves all parameters, then fails."""

    fails = True

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.fails:
            raise MemoryError("half-way")
        return loss


def prepared(importance: float = 1.0) -> tuple[nn.Linear, SoftMask, HalfWay, Tensor]:
    torch.manual_seed(0)
    backbone = nn.Linear(3, 2)
    mask = SoftMask(backbone)
    mask.update({name: torch.full_like(p, importance) for name, p in backbone.named_parameters()})
    optimizer = HalfWay(backbone.parameters(), lr=0.1, weight_decay=0.1)
    backbone(torch.randn(4, 3)).square().sum().backward()
    return backbone, mask, optimizer, backbone.weight.detach().clone()


def test_an_error_that_ends_the_block() -> None:
    backbone, mask, optimizer, before = prepared()
    with pytest.raises(MemoryError), mask.attach(optimizer):
        optimizer.step()
    assert torch.equal(backbone.weight, before)


def test_an_error_that_the_loop_catches() -> None:
    backbone, mask, optimizer, before = prepared()
    with mask.attach(optimizer):
        with pytest.raises(MemoryError):
            optimizer.step()
        assert torch.equal(backbone.weight, before)
        optimizer.fails = False
        optimizer.step()
    assert torch.equal(backbone.weight, before)


def test_half_a_step_is_scaled_once() -> None:
    backbone, mask, optimizer, before = prepared(importance=0.75)
    other, _, free, _ = prepared()
    with pytest.raises(MemoryError):
        free.step()
    with pytest.raises(MemoryError), mask.attach(optimizer):
        optimizer.step()
    torch.testing.assert_close(backbone.weight - before, (other.weight - before) / 4)


@pytest.mark.parametrize("order", ["scheduler first", "attach first"])
@pytest.mark.filterwarnings("error")
def test_schedulers_and_removal(order: str) -> None:
    backbone, mask, optimizer, before = prepared()
    optimizer.fails = False

    def scheduler() -> torch.optim.lr_scheduler.StepLR:
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    made = scheduler() if order == "scheduler first" else None
    with mask.attach(optimizer):
        made = made or scheduler()
        optimizer.step()
        made.step()
        assert torch.equal(backbone.weight, before)
    optimizer.step()
    assert not torch.equal(backbone.weight, before)


def test_without_a_mask_the_optimizer_is_as_it_was() -> None:
    _, mask, optimizer, _ = prepared()
    mask.attach(optimizer).remove()
    assert "step" not in vars(optimizer)
