"""Small networks, data and comparisons that several of these tests use."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask import SoftMask

Batch = tuple[Tensor, Tensor]


class Roundabout(nn.Module):
    """Computes what its layers compute one after the other, but is no plain chain: takes the general way."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    made = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weight))
        if bias is not None:
            made.bias.copy_(torch.tensor(bias))
    return made


def small_backbone(dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 6), nn.Tanh())


def small_batches(sizes: tuple[int, ...] = (5, 5, 3), seed: int = 7, classes: int = 3) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(n, 4, generator=generator), torch.randint(classes, (n,), generator=generator)) for n in sizes]


def copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """To the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_close(given: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-5) -> None:
    assert given.keys() == expected.keys()
    for name in expected:
        wanted = expected[name].to(given[name].dtype)
        torch.testing.assert_close(
            given[name], wanted, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )


def train(backbone: nn.Module, head: nn.Module, optimizer: Optimizer, batches: list[Batch], steps: int) -> None:
    """The user's own loop: knows nothing of a mask."""
    for step in range(steps):
        x, y = batches[step % len(batches)]

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(head(backbone(x)), y)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def half_blocked(backbone: nn.Module) -> tuple[SoftMask, dict[str, Tensor]]:
    """A mask with importance 1 or 0, and where it is 1."""
    mask = SoftMask(backbone)
    blocked = {name: torch.rand_like(p) < 0.5 for name, p in backbone.named_parameters()}
    mask.update({name: where.float() for name, where in blocked.items()})
    return mask, blocked


def everything(backbone: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones_like(p) for name, p in backbone.named_parameters()}


def moves(backbone: nn.Module, optimizer: Optimizer) -> bool:
    before = copied(backbone)
    for parameter in backbone.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return not same(copied(backbone), before)


def with_gradients(*modules: nn.Module) -> list[Tensor]:
    """Fills every `.grad` with random numbers; returns copies."""
    parameters = [p for module in modules for p in module.parameters()]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return [parameter.grad.clone() for parameter in parameters]
