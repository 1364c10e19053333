"""Networks made of several narrow ones: how wide each may be, and what one takes over from those before it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.learning.method import Method
from softmask.learning.networks import Backbone
from softmask.learning.parts.capacity import blocked_shares
from softmask.learning.scenario import Scenario


class Adapter(nn.Module):
    """Adds to the input of an activation what earlier columns computed one layer below.

    Each earlier column has a scale of its own; all are joined, reduced to the size of one, and projected as the
    column's own layer projects its own input (Rusu et al., 2016, equation 2).
    """

    def __init__(self, own: nn.Conv2d | nn.Linear, columns: int, *, scale: float, rectified: bool) -> None:
        super().__init__()
        self.scales = nn.Parameter(scale * torch.randn(columns))
        self.rectified = rectified
        self.reduce: nn.Module
        self.project: nn.Module
        if isinstance(own, nn.Conv2d):
            self.reduce = nn.Conv2d(columns * own.in_channels, own.in_channels, 1)
            self.project = nn.Conv2d(own.in_channels, own.out_channels, own.kernel_size)  # type: ignore[arg-type]
        else:
            self.reduce = nn.Linear(columns * own.in_features, own.in_features)
            self.project = nn.Linear(own.in_features, own.out_features)

    def forward(self, earlier: Sequence[Tensor]) -> Tensor:
        joined = torch.cat([scale * output for scale, output in zip(self.scales, earlier, strict=True)], 1)
        reduced = self.reduce(joined)
        return self.project(F.relu(reduced) if self.rectified else reduced)


def progressive_parameters(scenario: Scenario, scale: float) -> int:
    """Parameters of a column for each task, `scale` times as wide as the plain network, with heads and adapters."""
    total = 0
    column, heads = _shapes(scenario, scale)
    for earlier, head in enumerate(heads):
        layers: list[nn.Conv2d | nn.Linear] = [*(block.layer for block in column.blocks), head]
        total += sum(map(_size, layers))
        if earlier:
            for layer in layers[1:]:
                inputs = layer.weight.size(1)
                total += earlier + earlier * inputs**2 + inputs + _size(layer)
    return total


def modular_parameters(scenario: Scenario, scale: float, modules: int) -> int:
    """Parameters of so many modules in every layer, `scale` times as wide as the plain network's, with heads."""
    column, heads = _shapes(scenario, scale)
    return modules * _size(column) + sum(map(_size, heads))


def widest(scenario: Scenario, scales: Sequence[float], parameters: Callable[[Scenario, float], int]) -> float:
    """The largest of the rising scales with which there are, to two digits, no more than the plain network has.

    Two digits are what the paper's table of network sizes gives.
    """
    budget = _two_digits(Method.learnable(scenario))
    fitting = bisect_right(scales, budget, key=lambda scale: _two_digits(parameters(scenario, scale)))
    return scales[max(0, fitting - 1)]


def spent_shares(parts: Iterable[tuple[str, nn.Module, bool]]) -> dict[str, float]:
    """Share of the parameters of modules that are used up, by layer and in all, from (layer, module, used up)."""
    spent = {
        f"{layer}.{index}.{name}": torch.tensor(used).expand_as(parameter)
        for index, (layer, module, used) in enumerate(parts)
        for name, parameter in module.named_parameters()
    }
    return blocked_shares(spent)


def _shapes(scenario: Scenario, scale: float) -> tuple[Backbone, list[nn.Linear]]:
    with torch.device("meta"):
        column = scenario.backbone(scale)
        return column, [cast(nn.Linear, head) for head in scenario.heads(column.widths[-1])]


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _two_digits(count: int) -> float:
    return float(f"{count:.2g}")
