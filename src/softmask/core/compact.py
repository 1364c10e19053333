"""Importance in fewer bits, for models so large that four bytes a parameter are too many.

Always rounded down: a parameter may move a little more than it should, never less, and 1 (which blocks it for good)
stands only where float32 is exactly 1. What was read and is put back stays as it is, however often.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Literal

import torch
from torch import Tensor

from softmask.core.shards import part_by_part

Precision = Literal["float32", "bfloat16", "uint8"]
PRECISIONS = ("float32", "bfloat16", "uint8")
LARGEST = {"bfloat16": 2**-8, "uint8": 1 / 255}
"""The most by which importance may be rounded down."""
HIGHEST_CODE = 255
UPPER_HALF = -(1 << 16)  # of a float32's 32 bits: sign, exponent and seven digits, which are a bfloat16


class CompactImportance(MutableMapping[str, Tensor]):
    """Importance by parameter name: reads as float32, keeps one or two bytes."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.codes: dict[str, Tensor] = {}
        """As it is kept."""

    def __getitem__(self, name: str) -> Tensor:
        return decoded(self.codes[name])

    def __setitem__(self, name: str, importance: Tensor) -> None:
        self.codes[name] = encoded(importance, self.precision)

    def __delitem__(self, name: str) -> None:
        del self.codes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.codes)

    def __contains__(self, name: object) -> bool:
        return name in self.codes  # without making a float32 of it

    def __len__(self) -> int:
        return len(self.codes)


def encoded(importance: Tensor, precision: Precision) -> Tensor:
    """Values in 0..1 in this precision, rounded down."""
    return part_by_part(lambda part: _encoded(part.to(torch.float32), precision), importance)


def _encoded(importance: Tensor, precision: Precision) -> Tensor:
    if precision == "bfloat16":
        return (importance.view(torch.int32) & UPPER_HALF).view(torch.float32).to(torch.bfloat16)
    code = (importance * HIGHEST_CODE).round_()
    code -= (code / HIGHEST_CODE > importance).to(code.dtype)
    return code.to(torch.uint8)


def decoded(code: Tensor) -> Tensor:
    """Float32 again, whatever it was kept in."""
    return code.to(torch.float32) / HIGHEST_CODE if code.dtype == torch.uint8 else code.to(torch.float32)
