"""The fastest matrix product on this processor; all routines agree to rounding.

Measured with batches of 64 (`make bench NAME=products`): on a CPU with AVX-512, oneDNN is faster than torch's own
float32 product of a batch with a weight, and than a convolution's weight gradient as one product. With AVX2 alone
that one product is faster; linear layers were not measured there and use torch's own routine.
"""

from __future__ import annotations

import torch
from torch import Tensor


def has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


PREFERS_ONEDNN = torch.backends.cpu.get_cpu_capability() == "AVX512" and has_onednn()


def prefers_onednn() -> bool:
    """Whether this processor has AVX-512, where oneDNN is faster, and this build of torch has oneDNN."""
    return PREFERS_ONEDNN


def suits_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN should compute the product of this batch with this weight."""
    floats = x.dtype == weight.dtype == torch.float32
    on_cpu = x.device.type == "cpu" and weight.device.type == "cpu"
    return prefers_onednn() and floats and on_cpu and x.dim() == 2 and x.numel() > 0 and x.layout == torch.strided


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.t() + bias`, outside of autograd."""
    if not suits_onednn(x, weight):
        return torch.nn.functional.linear(x, weight, bias)
    # It respects the strides of inputs and weights, but reads a bias as if it were contiguous.
    added = None if bias is None else bias.contiguous()
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, added, "none", [], "")
    return product


def linear_backward(gradient: Tensor, weight: Tensor) -> Tensor:
    """`gradient @ weight`, from the gradient of a linear layer's output to that of its input; outside of autograd."""
    return linear_forward(gradient, weight.t())
