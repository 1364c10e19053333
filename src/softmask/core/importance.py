"""How important each parameter is to a task: equations 1 to 4 of Konishi et al., ICML 2023.

The gradient of a loss, summed over all batches with its sign, is standardised over each parameter tensor (a weight and
its bias apart) and squashed: `importance = |tanh((gradient - mean) / std)|`. A loss is either the task's own, through
its head, or the sum of the logits of an old task's head on the new task's data (cross-head importance).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softmask.core.parameters import modules_behind, named_trainable, unwrapped
from softmask.core.shards import (
    any_sharded,
    gradients_left_behind,
    is_sharded,
    like_shards,
    local,
    over_shards,
    standardised_shards,
)
from softmask.kernels.chain import is_changed
from softmask.kernels.crossing import chain_crossing

Batches = Iterable[tuple[Any, Any]]
Loss = Callable[[Any, Any], Tensor]

# Two accumulated gradients and a fresh one are three copies of the backbone; a larger share of the forward pass would
# save little, since a backward pass costs twice as much.
HEADS_AT_ONCE = 2


def standardise(gradient: Tensor) -> Tensor:
    """Eq. 3 over one tensor, in float32. A gradient without spread ranks nothing, so it gives zero."""
    gradient = gradient.detach().to(torch.float32)
    if not gradient.numel():
        return gradient
    low, high = gradient.aminmax()
    if low == high:
        return torch.zeros_like(gradient)
    # Eq. 3 depends neither on the scale nor on a shift. Dividing by the largest entry keeps the squares in float32's
    # range; moving the lowest entry to 0 and the highest to 1 keeps a small spread from being lost in rounding.
    largest = torch.maximum(high, -low)
    low, high = low / largest, high / largest
    gradient = (gradient / largest).sub_(low).div_(high - low)
    spread, centre = torch.std_mean(gradient)  # the unbiased standard deviation, as the authors use
    return gradient.sub_(centre).div_(spread)


def importance_of(gradient: Tensor) -> Tensor:
    """Eq. 1 for one parameter tensor and its summed gradient: values from 0 to 1."""
    if is_sharded(gradient):
        return like_shards(standardised_shards(gradient).tanh_().abs_(), gradient)
    return standardise(gradient).tanh_().abs_()


def gradient_importance(backbone: nn.Module, batches: Batches, losses: Iterable[Loss]) -> dict[str, Tensor]:
    """Eq. 1-4: the importance of each trainable parameter, the largest over the losses `loss(x, y) -> Tensor`."""
    importance: dict[str, Tensor] = {}
    with undisturbed(backbone):
        batches, parameters = repeatable(batches), named_trainable(backbone)
        for loss in losses:
            gradients = _summed_gradients(parameters, ((loss(x, y),) for x, y in batches), count=1)[0]
            _keep_largest(importance, gradients)
    return importance


def cross_head_importance(
    backbone: nn.Module, batches: Batches, heads: Sequence[Callable[[Any], Tensor]]
) -> dict[str, Tensor]:
    """Eq. 1-4 through the heads of earlier tasks: the loss of a head is the sum of its logits; labels are not used.

    All heads of a pass share one forward pass, and so the draws of dropout: each head sees the distribution that it
    would see alone. A chain of convolutional and linear layers takes a faster way with the same result.
    """
    if not heads:
        return {}
    importance: dict[str, Tensor] = {}
    with undisturbed(backbone, *modules_behind(heads)):
        batches = repeatable(batches)
        fast = _through_chain(backbone, batches, heads)
        if fast is not None:
            return fast
        parameters = named_trainable(backbone)
        # Sharded parameters are gathered for one backward pass only.
        at_once = 1 if any_sharded(parameters.values()) else HEADS_AT_ONCE
        for start in range(0, len(heads), at_once):
            chunk = heads[start : start + at_once]
            losses = (_logit_sums(chunk, unwrapped(backbone)(x)) for x, _ in batches)
            for gradients in _summed_gradients(parameters, losses, len(chunk)):
                _keep_largest(importance, gradients)
    return importance


def fisher_importance(backbone: nn.Module, batches: Batches, loss: Loss) -> dict[str, Tensor]:
    """The empirical Fisher information as EWC's implementation in the HAT repository takes it, not squashed.

    The square of each batch's mean gradient, weighted by the size of a full batch over the number of samples. The scale
    depends on the batch size, so a strength that was tuned for it belongs to it; that implementation uses 20.
    """
    with undisturbed(backbone):
        parameters = named_trainable(backbone)
        if any_sharded(parameters.values()):
            raise NotImplementedError("Fisher information of sharded parameters: only their mean gradient is known")
        squares = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
        samples = full_batch = 0
        for x, y in batches:
            full_batch, samples = max(full_batch, len(y)), samples + len(y)
            for square, gradient in zip(squares.values(), _gradients(loss(x, y), parameters), strict=True):
                if gradient is not None:
                    gradient = gradient.to_dense() if gradient.is_sparse else gradient
                    square.addcmul_(gradient, gradient)
        device = _device(parameters)
        total, largest = torch.tensor([float(samples)], device=device), torch.tensor([float(full_batch)], device=device)
        _sum_over_processes(total)
        _largest_over_processes(largest)
        if not total:
            raise ValueError("no batches: importance needs at least one")
        for name, square in squares.items():
            _sum_over_processes(square)
            _require_finite(name, square.mul_(largest / total))
    return squares


@contextmanager
def undisturbed(*modules: nn.Module) -> Iterator[None]:
    """Gradients may be taken inside; buffers, modes and the caller's random state are afterwards as before."""
    parts = list({part: None for module in modules for part in module.modules()})
    modes = [part.training for part in parts]
    buffers = [(part, name, b, _kept(b)) for part in parts for name, b in part._buffers.items() if b is not None]
    gradients = [(p, p.grad) for part in parts for p in part._parameters.values() if p is not None]
    cuda = sorted({p.device.index or 0 for module in modules for p in module.parameters() if p.device.type == "cuda"})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # A compiled backward pass frees what a second head would still need.
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
                    part._buffers[name] = buffer  # a forward pass may have put another tensor in its place
                    if value is not None and not torch.equal(buffer, value):  # an expanded one cannot be written to
                        buffer.copy_(value)


def _kept(buffer: Tensor) -> Tensor | None:
    """A copy to compare with. Sparse buffers, as a graph's edges, are replaced if anything, not written to."""
    return buffer.clone() if buffer.layout == torch.strided else None


def _summed_gradients(
    parameters: dict[str, nn.Parameter], losses: Iterable[Sequence[Tensor]], count: int
) -> list[dict[str, Tensor]]:
    """For each of `count` losses of a batch, its signed gradient summed over batches and processes, in float32."""
    sums = [{name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()} for _ in range(count)]
    batches = torch.zeros(1, device=_device(parameters))
    for of_batch in losses:
        batches += 1
        for index, loss in enumerate(of_batch):
            gradients = _gradients(loss, parameters, again=index < count - 1)
            for total, gradient in zip(sums[index].values(), gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)
    _sum_over_processes(batches)
    if not batches:
        raise ValueError("no batches: importance needs at least one")
    for total in (total for gradients in sums for total in gradients.values()):
        _sum_over_processes(total)
    return sums


def _gradients(loss: Tensor, parameters: dict[str, nn.Parameter], again: bool = False) -> Sequence[Tensor | None]:
    if not loss.requires_grad or not parameters:  # no watched parameter takes part
        return [None] * len(parameters)
    if any_sharded(parameters.values()) or _is_checkpointed(loss):
        return gradients_left_behind(loss, parameters.values(), again)
    return torch.autograd.grad(loss, list(parameters.values()), retain_graph=again, allow_unused=True)


def _is_checkpointed(loss: Tensor) -> bool:
    """Whether a part is computed anew in the backward pass by torch's reentrant way, which refuses `autograd.grad`."""
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


def _keep_largest(importance: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
    """Eq. 4, into `importance`. Gradients are let go one by one to save memory."""
    for name in list(gradients):
        gradient = gradients.pop(name)
        _require_finite(name, gradient)
        new = importance_of(gradient)
        importance[name] = torch.maximum(importance[name], new) if name in importance else new


def _through_chain(backbone: nn.Module, batches: Batches, heads: Sequence[Any]) -> dict[str, Tensor] | None:
    if not all(type(head) is nn.Linear and not is_changed(head) for head in heads):
        return None
    own = {id(parameter) for parameter in backbone.parameters()}
    if any(id(parameter) in own for head in heads for parameter in head.parameters()):
        return None  # a weight that a head shares with the backbone gets a gradient from there, too
    # The gradient of the sum of a linear head's logits is the sum of its rows, whatever the features.
    vectors = torch.stack([head.weight.detach().sum(0) for head in heads])
    return chain_crossing(unwrapped(backbone), batches, vectors, reduce=_sum_over_processes)


def _logit_sums(heads: Sequence[Callable[[Any], Tensor]], features: Any) -> list[Tensor]:
    """Eq. 2, the case of an earlier task. A head may change its input in place, so each has its own."""
    return [head(features.clone() if isinstance(features, Tensor) else features).sum() for head in heads]


def _require_finite(name: str, gradient: Tensor) -> None:
    if not over_shards(local(gradient).isfinite().all().to(torch.int32), gradient, "min"):
        raise FloatingPointError(
            f"the gradient of {name!r} is not finite: importance cannot be measured; nothing was changed"
        )


def repeatable(batches: Batches) -> Batches:
    """What can be gone through once only is kept, since every group of heads needs the batches again."""
    return list(batches) if isinstance(batches, Iterator) else batches


def _device(parameters: dict[str, nn.Parameter]) -> torch.device:
    return next((p.device for p in parameters.values()), torch.device("cpu"))


def _sum_over_processes(tensor: Tensor) -> None:
    """Adds up what the processes of a data-parallel run have found, so that all end with the same importance."""
    if is_sharded(tensor):
        return  # reduced by its own wrapper
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor)


def _largest_over_processes(tensor: Tensor) -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
