"""Cross-head importance (eq. 1-4) of a plain chain of layers, for all old heads, by a backward pass written by hand.

A head's sum of logits is `v . features` plus a constant, where v is the sum of the rows of the head's weight. So the
heads share the forward pass, only v differs, and the gradient of the last linear layer is `v[:, None] * M`, with one
matrix M for all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmask.kernels.chain import needed_input, plain_chain
from softmask.kernels.closed_form import largest_standardised_, standardised_
from softmask.kernels.products import below_linear
from softmask.kernels.stages import Passed, Stage, add_gradients, behind_gate, below_layer, forward, stages_of, sum_for

IMAGES_AT_ONCE = 64  # batches are joined or cut: the gradient of a sum of logits is a sum over samples
COPIES = 3  # of the backbone: what gradients and result may take together
SMALL = 2**24  # bytes that do not matter: a small backbone may take them, and shares a forward pass among more heads


def chain_crossing(
    backbone: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    head_vectors: Tensor,
    reduce: Callable[[Tensor], None] = lambda gradient: None,
) -> dict[str, Tensor] | None:
    """The largest importance over the heads, by parameter; None where the backbone has no such structure.

    `head_vectors` holds for each head the sum of its weight's rows. Heads of one group share the draws of dropout.
    `reduce` may change each summed gradient in place before it is standardised, to add those of other processes.
    Whether the result is None does not depend on the batches, so that all processes go the same way.
    """
    parameters = {name: p for name, p in backbone.named_parameters() if p.requires_grad}
    chain = plain_chain(backbone)
    parts = None if chain is None else stages_of(chain)
    if chain is None or parts is None or not _fits(parts[1], parameters, head_vectors):
        return None
    with torch.no_grad():
        return _Crossing(chain, *parts, parameters, reduce).importance(batches, head_vectors)


def _fits(stages: Sequence[Stage], parameters: dict[str, nn.Parameter], head_vectors: Tensor) -> bool:
    """Whether the trainable parameters all belong to the stages, each is used once, and all is float32."""
    used = [p for stage in stages for p in stage.layer.parameters()]
    return (
        len(set(used)) == len(used)
        and set(parameters.values()) <= set(used)
        and all(p.dtype == torch.float32 for p in [*used, head_vectors])
        and not torch.is_autocast_enabled(head_vectors.device.type)
        and head_vectors.size(1) == stages[-1].layer.weight.size(0)
    )


class _Crossing:
    def __init__(
        self,
        chain: Sequence[nn.Module],
        entrance: Sequence[nn.Module],
        stages: Sequence[Stage],
        parameters: dict[str, nn.Parameter],
        reduce: Callable[[Tensor], None],
    ) -> None:
        self.chain, self.entrance, self.stages, self.reduce = chain, entrance, stages, reduce
        self.sees_images = any(isinstance(layer, (nn.Conv2d, nn.MaxPool2d)) for layer in chain)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        last = stages[-1].layer
        # Of the last layer, what all heads have in common; of the others, gradients of a head's own.
        self.common = {p: torch.zeros_like(p) for p in last.parameters() if p in self.names}
        self.own = [p for p in self.names if p not in self.common]
        trained = [any(p in self.names for p in stage.layer.parameters()) for stage in stages]
        self.lowest = trained.index(True) if any(trained) else len(stages)

    def importance(self, batches: Iterable[tuple[Any, Any]], head_vectors: Tensor) -> dict[str, Tensor]:
        """Eq. 1 and 4; tanh comes last: being monotone, it may change places with the maximum."""
        largest = {p: torch.zeros_like(p) for p in self.own}
        for group, vectors in enumerate(head_vectors.split(self.heads_at_once(len(head_vectors)))):
            for gradients in self.summed_gradients(batches, vectors, first=group == 0):
                for p in self.own:
                    gradient = gradients.pop(p).contiguous()
                    self.reduce(gradient)
                    torch.maximum(largest[p], standardised_(gradient, self.names[p]).abs_(), out=largest[p])
        for p, gradient in self.common.items():
            self.reduce(gradient)
            largest[p] = largest_standardised_(gradient, head_vectors, self.names[p])
        return {name: largest[p].tanh_() for p, name in self.names.items()}

    def heads_at_once(self, heads: int) -> int:
        """So many that their gradients and the result fit into `COPIES`, or take little."""
        total, own = (sum(p.nbytes for p in some) for some in (self.names, self.own))
        return max(1, (COPIES - 1) * total // own, SMALL // own) if own else heads

    def summed_gradients(
        self, batches: Iterable[tuple[Any, Any]], vectors: Tensor, first: bool
    ) -> list[dict[Tensor, Tensor]]:
        """Each head's own gradients, summed over all batches; in the first pass also what all heads have in common."""
        sums: list[dict[Tensor, Tensor]] = [{p: sum_for(p) for p in self.own} for _ in vectors]
        count = vectors.new_zeros(())
        for x in _portions(batches, single=3 if self.sees_images else 1):
            count += len(x)
            passed = forward(self.entrance, self.stages, self._prepared(x))
            if first:
                self._add_common(passed[-1])
            for vector, gradients in zip(vectors, sums, strict=True):
                self._add_own(passed, vector, gradients)
            del passed  # before the next forward pass needs the room
        self.reduce(count)
        if not count:
            raise ValueError("no batches: importance needs at least one")
        return sums

    def _prepared(self, x: Tensor) -> Tensor:
        if self.sees_images:
            rows, columns = needed_input(self.chain, x.size(2), x.size(3))
            return x[:, :, :rows, :columns].contiguous(memory_format=torch.channels_last)
        if any(isinstance(layer, nn.Flatten) for layer in self.chain):
            return x
        return x.reshape(-1, x.size(-1))  # linear layers see the last dimension only

    def _add_common(self, last: Passed) -> None:
        """The last layer's gradients for v = (1, ..., 1)."""
        for p, total in self.common.items():
            if p.dim() == 2:
                total.addmm_(last.gate.t(), last.input)
            else:
                total.add_(last.gate.sum(0))

    def _add_own(self, passed: Sequence[Passed], vector: Tensor, sums: dict[Tensor, Tensor]) -> None:
        """One head's backward pass, from the last layer's input down to the lowest layer that is trained."""
        below = range(len(passed) - 2, self.lowest - 1, -1)
        if not below:
            return
        gradient = below_linear(passed[-1].gate * vector, passed[-1].stage.layer.weight)
        for index in below:
            here = passed[index]
            gradient = behind_gate(here, gradient)
            add_gradients(here, gradient, sums)
            if index > self.lowest:
                gradient = below_layer(here.stage.layer, gradient, here.input)


def _portions(batches: Iterable[tuple[Any, Any]], single: int) -> Iterator[Tensor]:
    """The inputs in portions of a good size, whatever the batches. With `single` dimensions it is one sample."""
    waiting: list[Tensor] = []
    for x, _ in batches:
        for part in (x.detach()[None] if x.dim() == single else x.detach()).split(IMAGES_AT_ONCE):
            too_many = sum(map(len, waiting)) + len(part) > IMAGES_AT_ONCE
            if waiting and (too_many or part.shape[1:] != waiting[0].shape[1:]):
                yield torch.cat(waiting)
                waiting = []
            waiting.append(part)
    if waiting:
        yield torch.cat(waiting)
