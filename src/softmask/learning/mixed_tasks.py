"""Batches that hold samples of several tasks: every sample is judged by its own task's head."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def own_head_logits(heads: nn.ModuleList, features: Tensor, tasks: Tensor) -> Tensor:
    """All heads' logits side by side, from one product; those of heads that are not the sample's own are -inf."""
    linear = [cast(nn.Linear, head) for head in heads]
    logits = F.linear(features, torch.cat([head.weight for head in linear]), torch.cat([head.bias for head in linear]))
    owners = torch.arange(len(heads), device=tasks.device).repeat_interleave(_sizes(heads, tasks.device))
    return logits.masked_fill(owners != tasks.unsqueeze(1), -math.inf)


def places(heads: nn.ModuleList, tasks: Tensor, labels: Tensor) -> Tensor:
    """Where each sample's label stands among the logits of all heads."""
    sizes = _sizes(heads, tasks.device)
    return (sizes.cumsum(0) - sizes)[tasks] + labels


def mixed_loss(heads: nn.ModuleList, features: Tensor, tasks: Tensor, labels: Tensor) -> Tensor:
    """The mean over all samples of each one's cross-entropy on its own head."""
    return F.cross_entropy(own_head_logits(heads, features, tasks), places(heads, tasks, labels))


def _sizes(heads: nn.ModuleList, device: torch.device) -> Tensor:
    return torch.tensor([cast(nn.Linear, head).out_features for head in heads], device=device)
