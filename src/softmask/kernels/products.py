"""Which routine multiplies quickest on this processor; every one gives the same numbers to rounding.

Measured with batches of 64 (`make bench NAME=products`): on a CPU with AVX-512, oneDNN is quicker than torch's own
float32 products of a batch with a weight, and than a convolution's weight gradient as one product. With AVX2 alone
that one product is the quicker; linear layers were not measured there, and stay torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


PREFERS_ONEDNN = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_onednn()


def prefers_onednn() -> bool:
    """Whether this processor has the wide vectors that oneDNN makes the most of, and this torch has oneDNN."""
    return PREFERS_ONEDNN


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether `x` times `weight` is a product of a batch with a matrix that oneDNN should make."""
    floats = x.dtype == weight.dtype == torch.float32
    on_cpu = x.device.type == "cpu" and weight.device.type == "cpu"
    return prefers_onednn() and floats and on_cpu and x.dim() == 2 and x.numel() > 0 and x.layout == torch.strided


def through_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.t() + bias`, outside of autograd."""
    if not suits_onednn(x, weight):
        return torch.nn.functional.linear(x, weight, bias)
    # It takes inputs and weights as they lie in memory, but a bias as if it had no gaps.
    added = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, added, "none", [], "")
    return product


def below_linear(gradient: Tensor, weight: Tensor) -> Tensor:
    """`gradient @ weight`, from the gradient of a linear layer's output to that of its input; outside of autograd."""
    return through_linear(gradient, weight.t())
