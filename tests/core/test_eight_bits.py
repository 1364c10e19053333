"""Optimizers that keep their moments in eight bits, as bitsandbytes has them: masked like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask import SoftMask, SubspaceMask
from tests.core.examples import small_backbone, small_batches


class Adam8bit(Optimizer):
    """Adam whose moments are rounded to bytes, each with one scale for the whole tensor."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state, moved = self.state[parameter], {}
                for name, decay, new in (("m", 0.9, parameter.grad), ("r", 0.999, parameter.grad.square())):
                    old = state[name].float() * state[f"{name} scale"] if name in state else torch.zeros_like(new)
                    moved[name] = old.lerp(new, 1 - decay)
                    state[f"{name} scale"] = moved[name].abs().max().clamp(min=1e-12) / 127
                    state[name] = (moved[name] / state[f"{name} scale"]).round().to(torch.int8)
                parameter.sub_(group["lr"] * moved["m"] / (moved["r"].sqrt() + 1e-6))


def adam_of_bitsandbytes(parameters: Any) -> Optimizer:
    made: Optimizer = pytest.importorskip("bitsandbytes").optim.AdamW8bit(parameters, lr=0.05, min_8bit_size=1)
    return made


def train(backbone: nn.Module, make: Callable[[Any], Optimizer], mask: SoftMask | SubspaceMask) -> None:
    head = nn.Linear(6, 3)
    optimizer = make([*backbone.parameters(), *head.parameters()])
    with mask.attach(optimizer):
        for x, y in small_batches((16,) * 6):
            optimizer.zero_grad()
            F.cross_entropy(head(backbone(x)), y).backward()
            try:
                optimizer.step()
            except (NotImplementedError, RuntimeError) as error:
                pytest.skip(f"this optimizer does not run here: {error}")


@pytest.mark.parametrize("make", [Adam8bit, adam_of_bitsandbytes])
def test_important_parameters_stay_and_others_move(make: Callable[[Any], Optimizer]) -> None:
    backbone, mask_of = small_backbone(), {}
    mask = SoftMask(backbone)
    for name, parameter in mask.parameters().items():
        mask_of[name] = (torch.rand(parameter.shape) < 0.5).float()
    mask.update(mask_of)
    before = {name: parameter.detach().clone() for name, parameter in mask.parameters().items()}
    train(backbone, make, mask)
    for name, parameter in mask.parameters().items():
        still = parameter == before[name]
        assert still[mask_of[name] == 1].all()
        assert not still[mask_of[name] == 0].any()


@pytest.mark.parametrize("make", [Adam8bit, adam_of_bitsandbytes])
def test_outputs_on_blocked_inputs_stay(make: Callable[[Any], Optimizer]) -> None:
    layer = nn.Linear(4, 6)
    mask, old = SubspaceMask(layer, strength=1.0), torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(32, 1)
    mask.consolidate([(old, torch.zeros(32).long())])
    before: Tensor = layer(old).detach()
    train(layer, make, mask)
    assert torch.allclose(layer(old), before, atol=1e-4)
    assert not torch.allclose(layer(torch.eye(4)[1:]), before[:3], atol=1e-2)
