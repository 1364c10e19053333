"""A linear layer that uses the fastest matrix product of this processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softmask.kernels.products import linear_backward, linear_forward, suits_onednn


class Linear(nn.Linear):
    """`nn.Linear`, with the same values and gradients to rounding.

    Where oneDNN computes the product there are first gradients only: no `vmap`, forward mode or second gradients.
    """

    def forward(self, input: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling()  # the compiler chooses its own products
        if compiling or torch.is_autocast_enabled(input.device.type) or not suits_onednn(input, self.weight):
            return super().forward(input)
        return _Multiply.apply(input, self.weight, self.bias)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return linear_forward(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_input = linear_backward(gradient, weight) if ctx.needs_input_grad[0] else None
        # The product that writes a whole weight is no faster with oneDNN.
        for_weight = gradient.t() @ x if ctx.needs_input_grad[1] else None
        return for_input, for_weight, gradient.sum(0) if ctx.needs_input_grad[2] else None
