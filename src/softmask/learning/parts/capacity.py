"""Small facts about importance that are kept with a run: how much is blocked, what old heads add."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def blocked_shares(importance: Mapping[str, Tensor]) -> dict[str, float]:
    """Share of parameters with importance exactly 1, by layer (weight and bias together) and for the whole network."""
    ones: dict[str, int] = {}
    entries: dict[str, int] = {}
    for name, tensor in importance.items():
        for group in (name.split(".")[0], "whole network"):
            ones[group] = ones.get(group, 0) + int((tensor == 1).sum())
            entries[group] = entries.get(group, 0) + tensor.numel()
    return {group: ones[group] / entries[group] for group in entries}


def cross_head_facts(
    own: Mapping[str, Tensor], cross: Mapping[str, Tensor], accumulated: Mapping[str, Tensor]
) -> dict[str, float]:
    """The paper's appendix on cross-head importance: where it lies above the task's own and above all so far.

    F is the share of such parameters, G the mean gap over them; `each` compares with the task's own importance, `total`
    with what had been accumulated before this task.
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
