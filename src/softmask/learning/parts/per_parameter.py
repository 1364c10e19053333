"""One tensor for each parameter of a module: what EWC, SI, UCL and TAG remember of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class PerParameter(nn.Module):
    """Zeros at first, of each parameter's shape; as buffers they are saved, and restored with the weights.

    With `stacked`, that many of them for each parameter, in one tensor.
    """

    def __init__(self, module: nn.Module, stacked: int | None = None) -> None:
        super().__init__()
        rows = () if stacked is None else (stacked,)
        self.names = [name for name, _ in module.named_parameters()]
        for name, parameter in module.named_parameters():
            # A buffer's name may have no dot.
            self.register_buffer(name.replace(".", "/"), parameter.detach().new_zeros(*rows, *parameter.shape))

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the module's parameters."""
        return tuple(self.buffers())

    def by_name(self) -> dict[str, Tensor]:
        """By the parameters' own names."""
        return dict(zip(self.names, self.tensors(), strict=True))

    @torch.no_grad()
    def copy_(self, source: Iterable[Tensor]) -> None:
        torch._foreach_copy_(self.tensors(), tuple(source))

    @torch.no_grad()
    def zero_(self) -> None:
        torch._foreach_zero_(self.tensors())
