"""Importance in lower precision, for models so large that four bytes per parameter are too many.

Always rounded down: a parameter may move a little more than it should, never less, and 1 (which blocks it for good)
is stored only where float32 is exactly 1. Decoding and encoding again changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Literal

import torch
from torch import Tensor

from softmask.core.shards import map_shards

Precision = Literal["float32", "bfloat16", "uint8"]
PRECISIONS = ("float32", "bfloat16", "uint8")
MAX_ROUNDING = {"bfloat16": 2**-8, "uint8": 1 / 255}
"""The largest amount by which importance is rounded down."""
HIGHEST_CODE = 255
UPPER_HALF = -(1 << 16)  # of a float32's 32 bits: sign, exponent and seven bits of fraction, which are a bfloat16


class CompactImportance(MutableMapping[str, Tensor]):
    """Importance by parameter name: reads as float32, stores one or two bytes."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.codes: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return decode(self.codes[name])

    def __setitem__(self, name: str, importance: Tensor) -> None:
        self.codes[name] = encode(importance, self.precision)

    def __delitem__(self, name: str) -> None:
        del self.codes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.codes)

    def __contains__(self, name: object) -> bool:
        return name in self.codes  # without decoding it

    def __len__(self) -> int:
        return len(self.codes)


def encode(importance: Tensor, precision: Precision) -> Tensor:
    """Values in 0..1 in this precision, rounded down."""
    return map_shards(lambda part: _encode(part.to(torch.float32), precision), importance)


def _encode(importance: Tensor, precision: Precision) -> Tensor:
    if precision == "bfloat16":
        return (importance.view(torch.int32) & UPPER_HALF).view(torch.float32).to(torch.bfloat16)
    code = (importance * HIGHEST_CODE).round_()
    code -= (code / HIGHEST_CODE > importance).to(code.dtype)
    return code.to(torch.uint8)


def decode(code: Tensor) -> Tensor:
    """Float32 again, from any precision."""
    return code.to(torch.float32) / HIGHEST_CODE if code.dtype == torch.uint8 else code.to(torch.float32)
