"""The update rule of TAG: RMSProp with the squared gradients of past tasks in its denominator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.learning.parts.blocks import rows_of_block

FIRST_DECAY, SECOND_DECAY, EPSILON = 0.9, 0.99, 1e-8


@dataclass(frozen=True)
class Moments:
    """Of one parameter tensor, in the present task and, a row for each, in past ones."""

    first: Tensor
    second: Tensor
    past_directions: Tensor
    past_seconds: Tensor


class TagRMSprop(Optimizer):
    """Holds no state of its own: the moments are the method's buffers and go back with the weights."""

    def __init__(self, moments: Mapping[nn.Parameter, Moments], lr: float, own_weight: float, contrast: float) -> None:
        super().__init__(list(moments), {"lr": lr})
        self.moments, self.own_weight, self.contrast = moments, own_weight, contrast

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update; `closure` may compute the loss and its gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter, moments in self.moments.items():
            if parameter.grad is not None:
                self.update(parameter, parameter.grad, moments)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, moments: Moments) -> None:
        """`weight <- weight - rate * gradient / denominator`, with all past tasks of a tensor at once."""
        moments.first.lerp_(gradient, 1 - FIRST_DECAY)
        weights, lr = self.past_weights(moments), float(self.param_groups[0]["lr"])
        rows = rows_of_block(parameter)
        pasts = moments.past_seconds.split(rows, dim=1)
        for weight, grad, second, past in zip(
            *(tensor.split(rows) for tensor in (parameter, gradient, moments.second)), pasts, strict=True
        ):
            second.mul_(SECOND_DECAY).addcmul_(grad, grad, value=1 - SECOND_DECAY)
            mixed = torch.addmv(second.flatten(), past.flatten(1).t(), weights, beta=self.own_weight)
            weight.addcdiv_(grad, mixed.sqrt_().add_(EPSILON).view_as(second), value=-lr)

    def past_weights(self, moments: Moments) -> Tensor:
        """`exp(-b * similarity)`: the more a past task's direction opposes the present one, the more it weighs."""
        similarity = moments.past_directions.flatten(1) @ moments.first.flatten() / length(moments.first)
        return torch.exp(-self.contrast * similarity)


def length(direction: Tensor) -> Tensor:
    """Never zero, so that a direction of norm zero divided by it stays zero."""
    return torch.linalg.vector_norm(direction).clamp_min(torch.finfo(direction.dtype).tiny)
