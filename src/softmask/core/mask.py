"""SoftMask: what earlier tasks need is remembered as one number per parameter and slows that parameter down.

Equations 5 to 7 of Konishi et al., ICML 2023: importance accumulates by elementwise maximum; the gradient of each
parameter of the backbone is scaled by one minus its importance, that of the current head by one minus the average.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence, Set
from typing import Any, Literal
from weakref import ReferenceType, WeakSet, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.core.attachment import Attachment
from softmask.core.compact import PRECISIONS, CompactImportance, Precision, decoded
from softmask.core.importance import Batches, cross_head_importance, gradient_importance, repeatable, undisturbed
from softmask.core.moment import Moment
from softmask.core.parameters import modules_behind, named_parameters, parameters_of, require_maskable, unwrapped
from softmask.core.shards import is_sharded, like_shards, local, over_shards
from softmask.core.statistics import unprotected_statistics

Head = nn.Module | Iterable[nn.Parameter]
STATE_VERSION = 1


class SoftMask:
    """Protects what a backbone has learned while it learns more.

    Watches the backbone's parameters that require grad. With a `threshold` the mask is hard: importance above it counts
    as 1, any other as 0. For very large models importance may be kept in a `precision` of "bfloat16" or "uint8",
    always rounded down.

        mask = SoftMask(backbone)
        with mask.attach(optimizer, head=head):
            ...                                   # your own training loop, unchanged
        mask.consolidate(batches, head, previous_heads)
    """

    def __init__(self, backbone: nn.Module, threshold: float | None = None, precision: Precision = "float32") -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
        self.backbone, self.threshold = backbone, threshold
        self.importance: MutableMapping[str, Tensor] = {} if precision == "float32" else CompactImportance(precision)
        """Accumulated importance by parameter name, float32. Replaced, never changed in place, by `update`."""
        self.attached: WeakSet[Optimizer] = WeakSet()
        self._objects: dict[str, ReferenceType[nn.Parameter]] = {}
        self._factors: dict[str, tuple[Moment, Tensor]] = {}
        self._mean: tuple[Moment, float] | None = None
        if not self.parameters():
            raise ValueError("the backbone has no parameter that requires grad: there is nothing to protect")
        if layers := unprotected_statistics(unwrapped(backbone)):
            warnings.warn(
                f"running statistics are no parameters, so a mask does not protect them: {', '.join(layers)}. "
                "Call softmask.freeze_running_statistics(backbone) once the first task is learned.",
                stacklevel=2,
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a mask is attached to no optimizer."""
        return {"backbone": self.backbone, "threshold": self.threshold, "importance": self.importance}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, attached=WeakSet(), _objects={}, _factors={}, _mean=None)

    @property
    def stored(self) -> Mapping[str, Tensor]:
        """Importance as it is kept: itself, or its compact form."""
        return self.importance.codes if isinstance(self.importance, CompactImportance) else self.importance

    @torch.inference_mode(False)
    def parameters(self) -> dict[str, nn.Parameter]:
        """The watched parameters. One that is made trainable later joins with no importance.

        Importance goes along where a parameter gets another name, as adapters and pruning give it. What would be lost,
        because its parameter is gone or has another shape, is an error.
        """
        found, kept = named_parameters(self.backbone), self.stored
        require_maskable(found)
        joins = any(parameter.requires_grad and name not in kept for name, parameter in found.items())
        if joins or not self._objects or not all(_fits(tensor, found.get(name)) for name, tensor in kept.items()):
            self._follow(found)
        return {name: found[name] for name in self.importance}

    def _follow(self, found: Mapping[str, nn.Parameter]) -> None:
        was = {id(known()): name for name, known in self._objects.items() if name in self.importance}
        moved = {name: was[id(p)] for name, p in found.items() if was.get(id(p), name) != name}
        gone = [name for name, tensor in self.stored.items() if not _fits(tensor, found.get(name))]
        gone = [name for name in gone if name not in moved.values()]
        if lost := [name for name in gone if _whole(self.importance[name], lambda part: part != 0)]:
            now = {name: f"has shape {tuple(found[name].shape)}" if name in found else "is gone" for name in lost}
            told = (f"{name!r} {now[name]}, but its importance {tuple(self.stored[name].shape)}" for name in lost)
            raise ValueError(f"{'; '.join(told)}: if that is meant, take it out (`del mask.importance[name]`)")
        along = {name: self.importance[old] for name, old in moved.items()}
        for name in {*moved.values(), *gone}:
            del self.importance[name]
        self.importance.update(along)
        for name, parameter in found.items():
            if parameter.requires_grad and name not in self.importance:
                self.importance[name] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        self._objects = {name: ref(found[name]) for name in self.importance}

    def attach(
        self,
        optimizer: Optimizer,
        head: Head | None = None,
        scale: Literal["auto", "gradient", "update"] = "auto",
    ) -> Attachment:
        """Soft-mask every `optimizer.step()` from now on, until the handle is removed or its `with` block ends.

        `gradient` scales gradients before the step (eq. 6, 7). `update` scales the step that the optimizer really took,
        which is what protects under adaptive optimizers, weight decay and momentum from an earlier task. `auto` takes
        the first only where both are always equal: plain SGD without weight decay and momentum. Where backbone and head
        have optimizers of their own, attach to each of them.
        """
        return Attachment(self, optimizer, parameters_of(head), scale)

    def apply(self, head: Head | None = None) -> None:
        """Eq. 6 and 7 by hand, between `backward()` and `step()`: scales `.grad` in place.

        The same as `scale="gradient"`: it protects under plain SGD. Adam and its kin divide the factor out again.
        """
        of_head = parameters_of(head)
        self.scale_gradients({id(parameter) for parameter in (*self.parameters().values(), *of_head)}, of_head)

    @torch.no_grad()
    def scale_gradients(self, of: Set[int], head: Sequence[nn.Parameter]) -> None:
        """Eq. 6 and 7 for parameters with these ids: another optimizer may hold the others, and scale them itself."""
        watched = self.parameters()
        for name, parameter in watched.items():
            if parameter.grad is not None and id(parameter) in of:
                parameter.grad = _scaled(parameter.grad, self.factor(name, parameter))  # eq. 6
        own = {id(parameter) for parameter in watched.values()}
        for parameter in head:
            if parameter.grad is not None and id(parameter) in of and id(parameter) not in own:
                parameter.grad.mul_(1 - self.mean())  # eq. 7

    def factor(self, name: str, like: Tensor) -> Tensor:
        """One minus the (soft or hard) mask of a parameter, on its device: what is left of its gradient in eq. 6."""
        importance = self.importance[name]
        if isinstance(self.importance, CompactImportance):
            return 1 - self.effective(importance).to(like.device)  # kept, it would take the room that was saved
        moment, factor = self._factors.get(name, (None, importance))
        if moment is None or not moment.is_now({name: importance}, self.threshold) or factor.device != like.device:
            factor = 1 - self.effective(importance).to(like.device)
            self._factors[name] = Moment({name: importance}, self.threshold), factor
        return factor

    def consolidate(
        self,
        batches: Batches,
        head: Callable[[Any], Tensor],
        previous_heads: Sequence[Callable[[Any], Tensor]] = (),
        loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
    ) -> None:
        """Eq. 1-5: measure what the task just learned needs, on its `(x, y)` batches, and remember it.

        Runs in the mode in which the modules are (dropout on, as the paper's authors do, if they are in train mode) and
        leaves weights, buffers, `.grad`, modes and the random state as they were. Under `torch.distributed` every
        process calls it with its own batches; all end with the same importance.
        """
        self.parameters()  # what cannot be kept is told before it is measured
        previous_heads, inner = tuple(previous_heads), unwrapped(self.backbone)
        with undisturbed(*modules_behind((head, *previous_heads, loss))):
            batches = repeatable(batches)
            own = gradient_importance(self.backbone, batches, [lambda x, y: loss(head(inner(x)), y)])
        cross = cross_head_importance(self.backbone, batches, previous_heads)
        for name in cross:  # into the memory that is there
            torch.maximum(local(own[name]), local(cross[name]), out=local(own[name]))
        self.update(own)

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, importance: Mapping[str, Tensor]) -> None:
        """Eq. 5: the elementwise maximum with what is remembered. Refuses as a whole, or is done as a whole."""
        watched = self.parameters()
        _require_same(watched, importance)
        for name, new in importance.items():
            _require_in_range(name, new)
        for name, new in importance.items():
            old = self.importance[name]
            part = local(old).to(watched[name].device)  # the backbone may have been moved since
            self.importance[name] = like_shards(torch.maximum(part, local(new).to(part)), old)

    def mean(self) -> float:
        """The average in eq. 7, over all parameters together; of the binary mask if there is a threshold."""
        if self._mean is None or not self._mean[0].is_now(self.stored, self.threshold):
            total = sum(_whole(self.effective(t), lambda part: part) for t in self.importance.values())
            count = sum(tensor.numel() for tensor in self.importance.values())
            self._mean = Moment(self.stored, self.threshold), total / count
        return self._mean[1]

    def blocked(self) -> float:
        """The share of parameters that cannot move at all: importance exactly 1, or above the threshold."""
        ones = sum(_whole(self.effective(tensor), lambda part: part == 1) for tensor in self.importance.values())
        return ones / sum(tensor.numel() for tensor in self.importance.values())

    def state_dict(self) -> dict[str, Any]:
        """Everything that must survive a restart; loads with `torch.load(..., weights_only=True)`."""
        return {"version": STATE_VERSION, "threshold": self.threshold, "importance": dict(self.stored)}

    @torch.inference_mode(False)
    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}; this release reads {STATE_VERSION}")
        watched, given = self.parameters(), state["importance"]
        # What was trainable once is remembered, though a fresh start may find it frozen again.
        again = {name: p for name, p in named_parameters(self.backbone).items() if name in given}
        _require_same({**watched, **again}, given)
        if missing := [name for name in watched if name not in given]:
            raise ValueError(
                f"the state has no importance of {', '.join(map(repr, missing))}: if a layer was frozen when it was "
                "saved, load the state before the layer is made trainable"
            )
        for name, tensor in given.items():
            _require_in_range(name, decoded(tensor))
        self.threshold = state["threshold"]
        for name in [name for name in self.importance if name not in given]:
            del self.importance[name]
        for name, tensor in given.items():
            own = tensor.detach().to(again[name].device, copy=True)
            self.importance[name] = decoded(own)
        self._objects = {name: ref(again[name]) for name in given}

    def effective(self, importance: Tensor) -> Tensor:
        """The mask that an importance stands for: itself, or 1 above the threshold and 0 elsewhere."""
        return importance if self.threshold is None else (importance > self.threshold).to(importance.dtype)


def _require_in_range(name: str, importance: Tensor) -> None:
    part = local(importance)
    if not over_shards(((part >= 0) & (part <= 1)).all().to(torch.int32), importance, "min"):
        raise ValueError(f"importance of {name!r} must lie in 0..1; nothing was changed")


def _whole(tensor: Tensor, count: Callable[[Tensor], Tensor]) -> float:
    """A sum over all entries, those that other processes hold among them."""
    return float(over_shards(count(local(tensor)).sum(dtype=torch.float64), tensor))


def _scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    if is_sharded(gradient):
        local(gradient).mul_(local(factor))
        return gradient
    if not gradient.is_sparse:
        return gradient.mul_(factor)
    # As it is: added up first, rows that stand in it twice would round otherwise than without a mask.
    indices, known = gradient._indices(), gradient.is_coalesced()
    values = gradient._values() * factor[tuple(indices)]
    return torch.sparse_coo_tensor(indices, values, gradient.shape, check_invariants=False, is_coalesced=known)


def _fits(importance: Tensor, parameter: Tensor | None) -> bool:
    return parameter is not None and importance.shape == parameter.shape


def _require_same(known: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Names and shapes must fit the backbone; the error lists every difference."""
    problems = [f"{name!r} is not in the backbone" for name in given if name not in known]
    problems += [
        f"{name!r} has shape {tuple(tensor.shape)}, the backbone has {tuple(known[name].shape)}"
        for name, tensor in given.items()
        if name in known and tensor.shape != known[name].shape
    ]
    if problems:
        raise ValueError("importance does not fit the backbone: " + "; ".join(problems))
