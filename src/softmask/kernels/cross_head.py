"""Cross-head importance (eq. 1-4) of a plain chain of layers, for all old heads, by a hand-written backward pass.

A linear head's sum of logits is `v . features` plus a constant, where v is the sum of the rows of the head's weight. So
the heads share the forward pass, only v differs, and the gradient of the last linear layer is `v[:, None] * M`, with
one matrix M for all heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softmask.kernels.chain import is_patched, needed_input, plain_chain
from softmask.kernels.layer_groups import (
    ForwardRecord,
    LayerGroup,
    add_gradients,
    forward,
    gate_backward,
    layer_backward,
    layer_groups,
    zeros_for_sum,
)
from softmask.kernels.layers import linear_backward
from softmask.kernels.standardise import blockwise_std_mean, largest_standardised_, require_finite, standardise_

IMAGES_AT_ONCE = 64  # batches are joined or split: the gradient of a sum of logits is a sum over samples
COPIES = 3  # of the backbone: the memory that gradients and result may take together
SMALL = 2**24  # bytes that any backbone may take, so that a small one shares a forward pass among more heads


def fast_cross_head_importance(
    backbone: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    batches: Iterable[tuple[Any, Any]],
    heads: Sequence[Any],
    sum_over_processes: Callable[[Tensor], None] = lambda tensor: None,
) -> dict[str, Tensor] | None:
    """The largest importance of the named parameters over the heads; None where backbone or heads do not allow it.

    Heads that share a forward pass share the draws of dropout. `sum_over_processes` adds in place what other processes
    found. Whether the result is None does not depend on the batches, so that all processes take the same path.
    """
    if not all(type(head) is nn.Linear and not is_patched(head) for head in heads):
        return None
    in_backbone = set(backbone.parameters())
    if any(parameter in in_backbone for head in heads for parameter in head.parameters()):
        return None  # a weight that a head shares with the backbone gets a gradient from the head, too
    head_vectors = torch.stack([head.weight.detach().sum(0) for head in heads])
    chain = plain_chain(backbone)
    parts = None if chain is None else layer_groups(chain)
    if chain is None or parts is None or not _is_supported(parts[1], parameters, head_vectors):
        return None
    with torch.no_grad():
        return _CrossHeadPass(chain, *parts, parameters, sum_over_processes).importance(batches, head_vectors)


def _is_supported(groups: Sequence[LayerGroup], parameters: Mapping[str, nn.Parameter], head_vectors: Tensor) -> bool:
    """Whether the trainable parameters all belong to the groups, each is used once, and all is float32."""
    used = [p for group in groups for p in group.layer.parameters()]
    return (
        len(set(used)) == len(used)
        and set(parameters.values()) <= set(used)
        and all(p.dtype == torch.float32 and p.numel() for p in [*used, head_vectors])
        and not torch.is_autocast_enabled(head_vectors.device.type)
        and head_vectors.size(1) == groups[-1].layer.weight.size(0)
    )


class _CrossHeadPass:
    def __init__(
        self,
        chain: Sequence[nn.Module],
        first: Sequence[nn.Module],
        groups: Sequence[LayerGroup],
        parameters: Mapping[str, nn.Parameter],
        sum_over_processes: Callable[[Tensor], None],
    ) -> None:
        self.chain, self.first, self.groups = chain, first, groups
        self.sum_over_processes = sum_over_processes
        self.sees_images = any(isinstance(layer, (nn.Conv2d, nn.MaxPool2d)) for layer in chain)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        last = groups[-1].layer
        # The last layer has one gradient that all heads share; the other layers have one for each head.
        self.shared = {p: torch.zeros_like(p) for p in last.parameters() if p in self.names}
        self.per_head = [p for p in self.names if p not in self.shared]
        trained = [any(p in self.names for p in group.layer.parameters()) for group in groups]
        self.lowest = trained.index(True) if any(trained) else len(groups)

    def importance(self, batches: Iterable[tuple[Any, Any]], head_vectors: Tensor) -> dict[str, Tensor]:
        """Eq. 1 and 4; tanh comes last: being monotone, it commutes with the maximum."""
        largest = {p: torch.zeros_like(p) for p in self.per_head}
        for number, vectors in enumerate(head_vectors.split(self.heads_at_once(len(head_vectors)))):
            for gradients in self.summed_gradients(batches, vectors, first_pass=number == 0):
                for p in self.per_head:
                    gradient = gradients.pop(p).contiguous()
                    self.sum_over_processes(gradient)
                    torch.maximum(largest[p], self._standardise_(gradient, p).abs_(), out=largest[p])
        for p, gradient in self.shared.items():
            self.sum_over_processes(gradient)
            largest[p] = largest_standardised_(gradient, head_vectors, self.names[p])
        return {name: largest[p].tanh_() for p, name in self.names.items()}

    def _standardise_(self, gradient: Tensor, parameter: Tensor) -> Tensor:
        def finite_range(values: Tensor) -> tuple[Tensor, Tensor]:
            low, high = values.aminmax()
            require_finite(self.names[parameter], low, high)
            return low, high

        return standardise_(gradient, blockwise_std_mean, finite_range)

    def heads_at_once(self, heads: int) -> int:
        """As many as let their gradients and the result fit into `COPIES`, or into `SMALL` bytes."""
        total, per_head = (sum(p.nbytes for p in some) for some in (self.names, self.per_head))
        return max(1, (COPIES - 1) * total // per_head, SMALL // per_head) if per_head else heads

    def summed_gradients(
        self, batches: Iterable[tuple[Any, Any]], vectors: Tensor, first_pass: bool
    ) -> list[dict[Tensor, Tensor]]:
        """Each head's own gradients, summed over all batches; the first pass also sums the shared ones."""
        sums: list[dict[Tensor, Tensor]] = [{p: zeros_for_sum(p) for p in self.per_head} for _ in vectors]
        count = vectors.new_zeros(())
        for x in _rebatched(batches, sample_dimensions=3 if self.sees_images else 1):
            count += len(x)
            records = forward(self.first, self.groups, self._prepared(x))
            if first_pass:
                self._add_shared(records[-1])
            for vector, gradients in zip(vectors, sums, strict=True):
                self._add_per_head(records, vector, gradients)
            del records  # before the next forward pass needs the memory
        self.sum_over_processes(count)
        if not count:
            raise ValueError("the batches have no samples: importance needs at least one")
        return sums

    def _prepared(self, x: Tensor) -> Tensor:
        if self.sees_images:
            rows, columns = needed_input(self.chain, x.size(2), x.size(3))
            return x[:, :, :rows, :columns].contiguous(memory_format=torch.channels_last)
        if any(isinstance(layer, nn.Flatten) for layer in self.chain):
            return x
        return x.reshape(-1, x.size(-1))  # linear layers act on the last dimension only

    def _add_shared(self, last: ForwardRecord) -> None:
        """The last layer's gradients for v = (1, ..., 1)."""
        for p, total in self.shared.items():
            if p.dim() == 2:
                total.addmm_(last.gate.t(), last.input)
            else:
                total.add_(last.gate.sum(0))

    def _add_per_head(self, records: Sequence[ForwardRecord], vector: Tensor, sums: dict[Tensor, Tensor]) -> None:
        """One head's backward pass, from the last layer's input down to the lowest layer that is trained."""
        below = range(len(records) - 2, self.lowest - 1, -1)
        if not below:
            return
        gradient = linear_backward(records[-1].gate * vector, records[-1].group.layer.weight)
        for index in below:
            record = records[index]
            gradient = gate_backward(record, gradient)
            add_gradients(record, gradient, sums)
            if index > self.lowest:
                gradient = layer_backward(record.group.layer, gradient, record.input)


def _rebatched(batches: Iterable[tuple[Any, Any]], sample_dimensions: int) -> Iterator[Tensor]:
    """The inputs in portions of a good size, whatever the batches. An input of `sample_dimensions` is one sample."""
    waiting: list[Tensor] = []
    for x, _ in batches:
        whole = x.detach()[None] if x.dim() == sample_dimensions else x.detach()
        for part in whole.split(IMAGES_AT_ONCE) if len(whole) else ():
            too_many = sum(map(len, waiting)) + len(part) > IMAGES_AT_ONCE
            if waiting and (too_many or part.shape[1:] != waiting[0].shape[1:]):
                yield torch.cat(waiting)
                waiting = []
            waiting.append(part)
    if waiting:
        yield torch.cat(waiting)
