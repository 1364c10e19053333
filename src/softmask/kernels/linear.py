"""A linear layer that takes the quickest product of this processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softmask.kernels.products import below_linear, suits_onednn, through_linear


class Linear(nn.Linear):
    """`nn.Linear`, with the same values and gradients to rounding.

    Where the product is oneDNN's there are first gradients only: no `vmap`, no forward mode, no gradients of gradients.
    """

    def forward(self, input: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling()  # which knows its own products
        if compiling or torch.is_autocast_enabled(input.device.type) or not suits_onednn(input, self.weight):
            return super().forward(input)
        return _Multiply.apply(input, self.weight, self.bias)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return through_linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        below = below_linear(gradient, weight) if ctx.needs_input_grad[0] else None
        # Of the three products the one that writes a whole weight is no quicker with oneDNN.
        for_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return below, for_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None
