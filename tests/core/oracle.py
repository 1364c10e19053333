"""The paper's equations in the slowest and most literal way, to compare the library with.

One plain `backward()` per batch and per head, `.grad` zeroed by hand, statistics by plain sums in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def importance_of(gradient: Tensor) -> Tensor:
    """Eq. 1 and 3, number by number: |tanh((g - mean) / std)|, with the standard deviation that divides by n - 1."""
    numbers = [float(g) for g in gradient.flatten()]
    if len(set(numbers)) == 1:
        return torch.zeros(gradient.shape)
    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((g - mean) ** 2 for g in numbers) / (len(numbers) - 1)
    return torch.tensor([abs(math.tanh((g - mean) / math.sqrt(variance))) for g in numbers]).reshape(gradient.shape)


def summed_gradients(backbone: nn.Module, batches: Any, loss: Callable[[Any, Any], Tensor]) -> dict[str, Tensor]:
    """Eq. 2: what repeated `backward()` leaves in `.grad` when nobody zeroes it between the batches."""
    for parameter in backbone.parameters():
        parameter.grad = None
    for x, y in batches:
        loss(x, y).backward()
    sums = {}
    for name, parameter in backbone.named_parameters():
        if parameter.requires_grad:
            sums[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone().to_dense()
        parameter.grad = None
    return sums


def own_importance(
    backbone: nn.Module, batches: Any, head: nn.Module, loss: Callable[..., Tensor] = F.cross_entropy
) -> dict[str, Tensor]:
    sums = summed_gradients(backbone, batches, lambda x, y: loss(head(backbone(x)), y))
    return {name: importance_of(gradient) for name, gradient in sums.items()}


def cross_importance(backbone: nn.Module, batches: Any, previous_heads: Sequence[nn.Module]) -> dict[str, Tensor]:
    importance: dict[str, Tensor] = {}
    for head in previous_heads:
        sums = summed_gradients(backbone, batches, lambda x, y, head=head: head(backbone(x)).sum())
        for name, gradient in sums.items():
            new = importance_of(gradient)
            importance[name] = torch.maximum(importance[name], new) if name in importance else new
    return importance


def task_importance(
    backbone: nn.Module,
    batches: Any,
    head: nn.Module,
    previous_heads: Sequence[nn.Module] = (),
    loss: Callable[..., Tensor] = F.cross_entropy,
) -> dict[str, Tensor]:
    """Eq. 4: the largest of the importance through the task's own head and through those of earlier tasks."""
    importance = own_importance(backbone, batches, head, loss)
    for name, new in cross_importance(backbone, batches, previous_heads).items():
        importance[name] = torch.maximum(importance[name], new)
    return importance


def fisher(backbone: nn.Module, batches: Any, loss: Callable[[Any, Any], Tensor], full_batch: int) -> dict[str, Tensor]:
    """full_batch / N times the sum over batches of the squared gradient of the batch's mean loss."""
    samples = sum(len(y) for _, y in batches)
    total = {name: torch.zeros_like(p) for name, p in backbone.named_parameters()}
    for batch in batches:
        for name, gradient in summed_gradients(backbone, [batch], loss).items():
            total[name] += gradient**2
    return {name: square * full_batch / samples for name, square in total.items()}
