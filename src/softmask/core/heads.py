"""Heads of earlier tasks, as copies that no longer change."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

Heads = nn.Module | Iterable[nn.Module]


def frozen_copy(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy in its own precision, or with floating-point weights in this one; no second full copy is made on the
    way."""
    tensors = [*module.parameters(), *module.buffers()] if dtype else []
    known: dict[int, Tensor] = {}
    for tensor in tensors:
        if tensor.is_floating_point():
            rounded = tensor.detach().to(dtype, copy=True)
            known[id(tensor)] = nn.Parameter(rounded, False) if isinstance(tensor, nn.Parameter) else rounded
    return copy.deepcopy(module, known).eval().requires_grad_(False)


def one_or_many(heads: Heads) -> list[nn.Module]:
    """A single head, a ModuleList, or any other iterable of heads."""
    if isinstance(heads, nn.ModuleDict):
        heads = heads.values()
    found = [heads] if isinstance(heads, nn.Module) and not isinstance(heads, nn.ModuleList) else list(heads)
    if strange := [type(each).__name__ for each in found if not isinstance(each, nn.Module)]:
        raise TypeError(f"an old head must be a module, not {strange[0]}")
    return found


def rebuilt_heads(
    known: Sequence[nn.Module], states: Sequence[Mapping[str, Tensor]], device: torch.device
) -> list[nn.Module]:
    """Heads with these states: copies of the known ones where there are as many, linear ones otherwise."""
    rebuilt = []
    for number, state in enumerate(states):
        if len(known) == len(states):
            head = copy.deepcopy(known[number])
        elif state.keys() <= {"weight", "bias"} and state["weight"].dim() == 2:
            outputs, inputs = state["weight"].shape
            head = nn.Linear(inputs, outputs, bias="bias" in state, dtype=state["weight"].dtype)
        else:
            raise ValueError(f"the state has {len(states)} heads that are not linear: pass heads of the same kind")
        try:
            head.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"head {number + 1} of the state is of another kind: {error}") from None
        rebuilt.append(head.to(device).eval().requires_grad_(False))
    return rebuilt
