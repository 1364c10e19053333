"""The importance of each parameter to a task: equations 1 to 4 of Konishi et al., ICML 2023.

The gradient of a loss, summed over all batches with its sign, is standardised over each parameter tensor (a weight and
its bias apart) and squashed: `importance = |tanh((gradient - mean) / std)|`. The loss is either the task's own, through
its head, or the sum of the logits of an old task's head on the new task's data (cross-head importance).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from softmask.core.parameters import modules_behind, named_trainable, unwrapped
from softmask.core.shards import (
    any_sharded,
    gradients_by_backward,
    is_sharded,
    local,
    reduce_over_shards,
    shard_of,
    standardise_shard,
)
from softmask.kernels import fast_cross_head_importance
from softmask.kernels.standardise import standardise_

Batches = Iterable[tuple[Any, Any]]
Loss = Callable[[Any, Any], Tensor]
Head = Callable[[Any], Tensor]

# Two accumulated gradients are two copies of the backbone. More heads at once would save little: a backward pass costs
# twice as much as the forward pass that they share.
HEADS_AT_ONCE = 2


@dataclass(frozen=True)
class TaskImportance:
    """Importance through the task's own head, and the largest through earlier tasks' heads (empty if there are
    none)."""

    own: dict[str, Tensor]
    cross: dict[str, Tensor]

    def combine_(self) -> dict[str, Tensor]:
        """Eq. 4: the larger of the two, which replaces `own` in memory."""
        for name, cross in self.cross.items():
            torch.maximum(local(self.own[name]), local(cross), out=local(self.own[name]))
        return self.own


def task_importance(
    backbone: nn.Module,
    batches: Batches,
    head: Head,
    previous_heads: Sequence[Head] = (),
    loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
) -> TaskImportance:
    """Eq. 1-4 on a task's `(x, y)` batches, with both parts of eq. 4 separate, as the benchmark's SPG measures them."""
    own, batches = _own_importance(backbone, batches, head, previous_heads, loss)
    return TaskImportance(own, cross_head_importance(backbone, batches, previous_heads))


def combined_importance(
    backbone: nn.Module,
    batches: Batches,
    head: Head,
    previous_heads: Sequence[Head] = (),
    loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
) -> dict[str, Tensor]:
    """`task_importance(...).combine_()` with one copy of the backbone less, as `SoftMask.consolidate` measures it."""
    importance, batches = _own_importance(backbone, batches, head, previous_heads, loss)
    _merge_cross_head_importance(importance, backbone, batches, previous_heads)
    return importance


def _own_importance(
    backbone: nn.Module,
    batches: Batches,
    head: Head,
    previous_heads: Sequence[Head],
    loss: Callable[[Tensor, Any], Tensor],
) -> tuple[dict[str, Tensor], Batches]:
    """And batches that can be iterated again, which are made without touching the random state."""
    inner = unwrapped(backbone)
    with preserved_state(*modules_behind((head, *previous_heads, loss))):
        batches = repeatable(batches)
        return gradient_importance(backbone, batches, [lambda x, y: loss(head(inner(x)), y)]), batches


def importance_of(gradient: Tensor) -> Tensor:
    """Eq. 1 and 3 for one parameter tensor and its summed gradient: values from 0 to 1."""
    if is_sharded(gradient):
        return shard_of(standardise_shard(gradient).tanh_().abs_(), gradient)
    own = gradient.detach().to(torch.float32, copy=True)
    return standardise_(own).tanh_().abs_() if own.numel() else own


def gradient_importance(backbone: nn.Module, batches: Batches, losses: Iterable[Loss]) -> dict[str, Tensor]:
    """Eq. 1-4: the importance of each trainable parameter, the largest over the losses `loss(x, y) -> Tensor`."""
    importance: dict[str, Tensor] = {}
    with preserved_state(backbone):
        batches, parameters = repeatable(batches), named_trainable(backbone)
        for loss in losses:
            gradients = _summed_gradients(parameters, batches, partial(_one_loss, loss), count=1)
            _merge_by_maximum(importance, gradients[0])
    return importance


def cross_head_importance(backbone: nn.Module, batches: Batches, heads: Sequence[Head]) -> dict[str, Tensor]:
    """Eq. 1-4 through the heads of earlier tasks: the loss of a head is the sum of its logits; labels are not used.

    Heads that share a forward pass share its dropout masks: each sees the same distribution as it would alone. A chain
    of convolutional and linear layers has a faster implementation with the same result.
    """
    importance: dict[str, Tensor] = {}
    _merge_cross_head_importance(importance, backbone, batches, heads)
    return importance


def _merge_cross_head_importance(
    importance: dict[str, Tensor], backbone: nn.Module, batches: Batches, heads: Sequence[Head]
) -> None:
    if not heads:
        return
    with preserved_state(backbone, *modules_behind(heads)):
        batches, inner, parameters = repeatable(batches), unwrapped(backbone), named_trainable(backbone)
        fast = fast_cross_head_importance(inner, parameters, batches, heads, _sum_over_processes)
        if fast is not None:
            for name in list(fast):
                _merge(importance, name, fast.pop(name))
            return
        # Sharded parameters are gathered for one backward pass only.
        at_once = 1 if any_sharded(parameters.values()) else HEADS_AT_ONCE
        for start in range(0, len(heads), at_once):
            chunk = heads[start : start + at_once]
            sums = _summed_gradients(parameters, batches, partial(_logit_sums, chunk, inner), len(chunk))
            for gradients in sums:
                _merge_by_maximum(importance, gradients)


def fisher_importance(backbone: nn.Module, batches: Batches, loss: Loss) -> dict[str, Tensor]:
    """The empirical Fisher information as in EWC's implementation in the HAT repository, not squashed.

    The square of each batch's mean gradient, weighted by the size of a full batch over the number of samples. The scale
    depends on the batch size, so the regularisation strength must be tuned with it; that implementation uses 20.
    """
    with preserved_state(backbone):
        parameters = named_trainable(backbone)
        if any_sharded(parameters.values()):
            raise NotImplementedError("Fisher information of sharded parameters is not supported")
        squares = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
        samples = full_batch = 0
        for x, y in batches:
            full_batch, samples = max(full_batch, len(y)), samples + len(y)
            _each_gradient(loss(x, y), parameters, partial(_add_square_to, squares))
        device = _device(parameters)
        total, largest = torch.tensor([float(samples)], device=device), torch.tensor([float(full_batch)], device=device)
        _sum_over_processes(total)
        _largest_over_processes(largest)
        _require_samples(total)
        for name, square in squares.items():
            _sum_over_processes(square)
            _require_finite(name, square.mul_(largest / total))
    return squares


@contextmanager
def preserved_state(*modules: nn.Module) -> Iterator[None]:
    """Gradients may be taken inside; buffers, `.grad`, modes and the random state are restored afterwards."""
    parts = list({part: None for module in modules for part in module.modules()})
    modes = [part.training for part in parts]
    buffers = [
        (part, name, b, _copy_if_dense(b)) for part in parts for name, b in part._buffers.items() if b is not None
    ]
    gradients = [(p, p.grad) for part in parts for p in part._parameters.values() if p is not None]
    cuda = sorted({p.device.index or 0 for module in modules for p in module.parameters() if p.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # A compiled backward pass frees buffers that a second head still needs.
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            for part, mode in zip(parts, modes, strict=True):
                part.training = mode
            with torch.no_grad():
                for part, name, buffer, value in buffers:
                    part._buffers[name] = buffer  # a forward pass may have replaced the tensor
                    if value is not None and not torch.equal(buffer, value):  # an expanded one cannot be written to
                        buffer.copy_(value)


def _copy_if_dense(buffer: Tensor) -> Tensor | None:
    """A copy to compare with. Sparse buffers, such as a graph's edges, may be replaced but are not written to."""
    return buffer.clone() if buffer.layout == torch.strided else None


def _summed_gradients(
    parameters: dict[str, nn.Parameter], batches: Batches, losses_of: Callable[[Any, Any], Sequence[Tensor]], count: int
) -> list[dict[str, Tensor]]:
    """For each of the `count` losses of a batch, its signed gradient summed over batches and processes, in float32."""
    sums = [{name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()} for _ in range(count)]
    samples = torch.zeros(1, device=_device(parameters))
    for x, y in batches:
        samples += _count_samples(x)
        for index, loss in enumerate(losses_of(x, y)):
            _each_gradient(loss, parameters, partial(_add_to, sums[index]), retain_graph=index < count - 1)
    _sum_over_processes(samples)
    _require_samples(samples)
    for total in (total for gradients in sums for total in gradients.values()):
        _sum_over_processes(total)
    return sums


def _count_samples(x: Any) -> int:
    """Rows of the first tensor in an input, which may be a tensor or a container of tensors; 1 where there is none."""
    if isinstance(x, Tensor):
        return len(x) if x.dim() else 1
    items = x.values() if isinstance(x, Mapping) else x if isinstance(x, (tuple, list)) else ()
    return next((_count_samples(item) for item in items if isinstance(item, (Tensor, Mapping, tuple, list))), 1)


def _require_samples(count: Tensor) -> None:
    if not count:
        raise ValueError("the batches have no samples: importance needs at least one")


def _each_gradient(
    loss: Tensor, parameters: dict[str, nn.Parameter], take: Callable[[str, Tensor], Any], retain_graph: bool = False
) -> None:
    """Calls `take` with each gradient as soon as it is computed and then frees it: all together would be one more
    copy."""
    if not loss.requires_grad or not parameters:  # the loss does not depend on the backbone
        return
    if any_sharded(parameters.values()) or _is_checkpointed(loss):
        for name, gradient in zip(
            parameters, gradients_by_backward(loss, parameters.values(), retain_graph), strict=True
        ):
            if gradient is not None:
                take(name, gradient)
        return

    def taking(name: str) -> Callable[[Tensor], Tensor | None]:
        def hook(gradient: Tensor) -> Tensor | None:
            take(name, gradient)
            # The value that `grad` returns in its place takes no memory.
            return None if gradient.is_sparse else gradient.new_zeros(()).expand_as(gradient)

        return hook

    hooks = [parameter.register_hook(taking(name)) for name, parameter in parameters.items()]
    try:
        torch.autograd.grad(loss, list(parameters.values()), retain_graph=retain_graph, allow_unused=True)
    finally:
        for each in hooks:
            each.remove()


def _add_to(totals: Mapping[str, Tensor], name: str, gradient: Tensor) -> None:
    totals[name].add_(gradient)


def _add_square_to(squares: Mapping[str, Tensor], name: str, gradient: Tensor) -> None:
    gradient = gradient.to_dense() if gradient.is_sparse else gradient
    squares[name].addcmul_(gradient, gradient)


def _is_checkpointed(loss: Tensor) -> bool:
    """Whether the graph has a reentrant activation checkpoint, which does not support `autograd.grad`."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False


def _merge_by_maximum(importance: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
    """Eq. 4, into `importance`. Gradients are freed one by one to save memory."""
    for name in list(gradients):
        gradient = gradients.pop(name)
        _require_finite(name, gradient)
        _merge(importance, name, importance_of(gradient))


def _merge(importance: dict[str, Tensor], name: str, new: Tensor) -> None:
    if name in importance:
        torch.maximum(local(importance[name]), local(new), out=local(importance[name]))
    else:
        importance[name] = new


def _one_loss(loss: Loss, x: Any, y: Any) -> list[Tensor]:
    return [loss(x, y)]


def _logit_sums(heads: Sequence[Head], backbone: nn.Module, x: Any, _: Any) -> list[Tensor]:
    """Eq. 2 for earlier tasks. A head may change its input in place, so each gets a copy."""
    features = backbone(x)
    return [head(features.clone() if isinstance(features, Tensor) else features).sum() for head in heads]


def _require_finite(name: str, gradient: Tensor) -> None:
    if not reduce_over_shards(local(gradient).isfinite().all().to(torch.int32), gradient, "min"):
        raise FloatingPointError(
            f"the gradient of {name!r} is not finite: importance cannot be measured; nothing was changed"
        )


def repeatable(batches: Batches) -> Batches:
    """Batches that can be iterated again, since every group of heads needs them: an iterator becomes a list."""
    return list(batches) if isinstance(batches, Iterator) else batches


def _device(parameters: dict[str, nn.Parameter]) -> torch.device:
    return next((p.device for p in parameters.values()), torch.device("cpu"))


def _sum_over_processes(tensor: Tensor) -> None:
    """Sums over the processes of a data-parallel run, so that all end with the same importance."""
    if is_sharded(tensor):
        return  # reduced by its own wrapper
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)


def _largest_over_processes(tensor: Tensor) -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
