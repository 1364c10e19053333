"""More data for a known task: its head is trained further, and grows if there are new classes.

While it learns, the task has two heads. The old one does not change, and its answers to the new images are protected
like those of any old head. The new one begins with the rows of the old one; rows of classes without new images are
frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.errors import DataError
from softmask.learning.method import Method
from softmask.models.description import MOST_CLASSES, KnownTask

MOST_OFFSETS = 1000


def grown_classes(known: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """Old classes keep their positions; new ones are appended."""
    classes = (*known, *(name for name in found if name not in known))
    if len(classes) > MOST_CLASSES:
        raise DataError(f"a task has at most {MOST_CLASSES} classes, not {len(classes)}")
    return classes


class GrowingHead(nn.Linear):
    """A head with some frozen rows."""

    was: Tensor
    was_bias: Tensor
    held: Tensor

    def __init__(self, old: nn.Linear, fresh: nn.Linear, held: Tensor) -> None:
        """`held` marks the classes of `fresh` whose rows are frozen."""
        super().__init__(fresh.in_features, fresh.out_features)
        with torch.no_grad():
            self.weight.copy_(fresh.weight)
            self.bias.copy_(fresh.bias)
            self.weight[: old.out_features] = old.weight
            self.bias[: old.out_features] = old.bias
        self.register_buffer("was", self.weight.detach().clone(), persistent=False)
        self.register_buffer("was_bias", self.bias.detach().clone(), persistent=False)
        self.register_buffer("held", held, persistent=False)

    def rows(self) -> tuple[Tensor, Tensor]:
        """The effective weight and bias."""
        return torch.where(self.held[:, None], self.was, self.weight), torch.where(self.held, self.was_bias, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, *self.rows())


def begin_growing(method: Method, place: int, labels: Tensor) -> None:
    """Replaces the last head by one that grows from the head at this position."""
    old, fresh = method.heads[place], method.heads[-1]
    assert isinstance(old, nn.Linear)
    assert isinstance(fresh, nn.Linear)
    held = torch.ones(fresh.out_features, dtype=torch.bool)
    held[labels.unique()] = False
    held[old.out_features :] = False
    method.heads[len(method.heads) - 1] = GrowingHead(old, fresh, held.to(fresh.weight.device))


@torch.no_grad()
def shift_new_classes(head: nn.Module, first: int, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> None:
    """Shifts the biases of the new classes, from `first` on: a head that saw no images of some old classes
    overestimates the new ones.

    By the offset with the highest mean of the accuracy on kept samples of the old classes and on validation samples of
    the new data, both as (logits, labels); of equally good offsets the middle (Wu et al., CVPR 2019, with the offset
    alone).
    """
    assert isinstance(head, nn.Linear)
    if first == head.out_features:
        return
    groups = [_sides(*each, first) for each in (old, new)]
    margins = torch.cat([margin for margin, _, _ in groups]).unique()  # where an answer changes sides
    ends = torch.stack([margins[0] - 1, margins[-1] + 1])
    offsets = torch.cat([ends[:1], (margins[1:] + margins[:-1]) / 2, ends[1:]])
    if len(offsets) > MOST_OFFSETS:
        offsets = offsets[torch.linspace(0, len(offsets) - 1, MOST_OFFSETS).long()]
    right = torch.zeros(len(offsets), dtype=torch.float64)
    for margin, of_old, of_new in groups:
        is_new = offsets[:, None] > margin
        right += torch.where(is_new, of_new, of_old).double().mean(1)
    best = torch.nonzero(right == right.max()).flatten()
    head.bias[first:] += offsets[best[len(best) // 2]].to(head.bias)


def _sides(logits: Tensor, labels: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
    """The offset of the new classes above which one of them wins, and whether either answer is right."""
    old, new = logits[:, :first].max(1), logits[:, first:].max(1)
    return old.values - new.values, old.indices == labels, new.indices + first == labels


def settled(head: nn.Module) -> nn.Linear:
    """A plain layer with the effective rows."""
    assert isinstance(head, GrowingHead)
    weight, bias = head.rows()
    plain = nn.Linear(head.in_features, head.out_features).to(weight)
    with torch.no_grad():
        plain.weight.copy_(weight)
        plain.bias.copy_(bias)
    return plain


def replace_old_head(state: Mapping[str, Any], place: int, last: int) -> dict[str, Any]:
    """The state with the last head in place of the old one."""
    old, new = f"heads.{place}.", f"heads.{last}."
    kept = {name: value for name, value in state.items() if not name.startswith((old, new))}
    return kept | {old + name.removeprefix(new): value for name, value in state.items() if name.startswith(new)}


def grown_facts(known: KnownTask, learned: KnownTask) -> KnownTask:
    """The entry of the task in the description: samples and times of both trainings are added up."""
    return replace(
        learned,
        samples=known.samples + learned.samples,
        epochs=known.epochs + learned.epochs,
        seconds=round(known.seconds + learned.seconds, 3),
        probe=known.probe,
        number=known.number,
    )
