"""Plain SGD in which some parameters have a learning rate of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from softmask.kernels.masked_sgd import MaskedSGD
from softmask.learning.method import Method


def sgd_with_own_rate(method: Method, apart: Iterable[nn.Parameter], lr: float, factor: float) -> MaskedSGD:
    """What is trainable at `lr`, those `apart` at `factor` times it; the first group's rate is the one that counts."""
    known = {id(parameter) for parameter in apart}
    trainable = [parameter for parameter in method.parameters() if parameter.requires_grad]
    others = [parameter for parameter in trainable if id(parameter) not in known]
    own = [parameter for parameter in trainable if id(parameter) in known]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": own, "lr": lr * factor}]
    return MaskedSGD(groups, lr)
