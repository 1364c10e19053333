"""The size of a network and its used capacity: facts recorded with a run, and widths within a budget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from softmask.learning.method import Method
from softmask.learning.networks import Backbone
from softmask.learning.scenario import Scenario


def blocked_shares(importance: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of parameters with importance exactly 1, by layer (weight and bias together) and for the whole network."""
    ones: dict[str, int] = {}
    entries: dict[str, int] = {}
    for name, tensor in importance.items():
        for group in (name.split(".")[0], "whole network"):
            ones[group] = ones.get(group, 0) + int((tensor == 1).sum())
            entries[group] = entries.get(group, 0) + tensor.numel()
    return {group: ones[group] / entries[group] for group in entries}


def blocked_modules(parts: Iterable[tuple[str, nn.Module, bool]]) -> dict[str, float]:
    """As `blocked_shares`, where whole modules are frozen, from (layer, module, frozen)."""
    blocked = {
        f"{layer}.{index}.{name}": torch.tensor(frozen).expand_as(parameter)
        for index, (layer, module, frozen) in enumerate(parts)
        for name, parameter in module.named_parameters()
    }
    return blocked_shares(blocked)


def cross_head_facts(
    own: Mapping[str, Tensor], cross: Mapping[str, Tensor], accumulated: Mapping[str, Tensor]
) -> dict[str, float]:
    """The paper's appendix on cross-head importance: parameters where it exceeds the task's own or the accumulated
    importance.

    F is the share of such parameters, G the mean gap over them; `each` compares with the task's own importance, `total`
    with the importance accumulated before this task.
    """
    if not cross:
        return {}
    facts: dict[str, float] = {}
    for label, other in (("each", own), ("total", accumulated)):
        gaps = torch.cat([(gap - other[name].to(gap)).flatten() for name, gap in cross.items()])
        above = gaps > 0
        facts[f"F-{label}"] = above.double().mean().item()
        facts[f"G-{label}"] = gaps[above].double().mean().item() if above.any() else 0.0
    return facts


def widest(scenario: Scenario, scales: Sequence[float], parameters: Callable[[Scenario, float], int]) -> float:
    """The largest scale with which a network has, to two digits, no more parameters than the plain one; `scales`
    ascend.

    Two digits are the precision of the paper's table of network sizes.
    """
    budget = _two_digits(Method.learnable(scenario))
    fitting = bisect_right(scales, budget, key=lambda scale: _two_digits(parameters(scenario, scale)))
    return scales[max(0, fitting - 1)]


def column_and_heads(scenario: Scenario, scale: float) -> tuple[Backbone, list[nn.Linear]]:
    """A narrow backbone and its heads, as shapes without memory."""
    with torch.device("meta"):
        column = scenario.backbone(scale)
        return column, [cast(nn.Linear, head) for head in scenario.heads(column.widths[-1])]


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _two_digits(count: int) -> float:
    return float(f"{count:.2g}")
