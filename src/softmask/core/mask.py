"""SoftMask: one importance per parameter accumulates over the tasks and scales down that parameter's updates.

Equations 5 to 7 of Konishi et al., ICML 2023: importance accumulates by elementwise maximum; the gradient of each
backbone parameter is scaled by one minus its importance, that of the current head by one minus the average.
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
from softmask.core.compact import PRECISIONS, CompactImportance, Precision, decode
from softmask.core.importance import Batches, combined_importance
from softmask.core.moving import pieces
from softmask.core.parameters import named_parameters, parameters_of, require_maskable, unwrapped
from softmask.core.shards import local, reduce_over_shards, shard_of
from softmask.core.statistics import unprotected_statistics

Head = nn.Module | Iterable[nn.Parameter]
STATE_VERSION = 1


class SoftMask:
    """Protects a backbone's earlier tasks while it learns new ones.

    It masks the backbone's parameters that require grad. With a `threshold` the mask is hard: importance above it
    counts as 1, any other as 0. For very large models importance may be stored with a `precision` of
    "bfloat16" or "uint8", always rounded down.

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
        self._mean: tuple[_CacheKey, float] | None = None
        if not self.parameters():
            raise ValueError("the backbone has no parameter that requires grad: there is nothing to protect")
        if layers := unprotected_statistics(unwrapped(backbone)):
            warnings.warn(
                f"running statistics are not parameters, so a mask does not protect them: {', '.join(layers)}. "
                "Call softmask.freeze_running_statistics(backbone) once the first task is learned.",
                stacklevel=2,
            )

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a mask is not attached to any optimizer."""
        return {"backbone": self.backbone, "threshold": self.threshold, "importance": self.importance}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.backbone, self.threshold, self.importance = state["backbone"], state["threshold"], state["importance"]
        self.attached, self._objects, self._mean = WeakSet(), {}, None

    @property
    def threshold(self) -> float | None:
        return self._threshold

    @threshold.setter
    def threshold(self, threshold: float | None) -> None:
        if threshold is not None and not (isinstance(threshold, (int, float)) and 0 <= threshold <= 1):
            raise ValueError(f"threshold must be None or a number from 0 to 1, not {threshold!r}")
        self._threshold = threshold

    @property
    def stored(self) -> Mapping[str, Tensor]:
        """Importance as it is stored: in float32, or in its compact form."""
        return self.importance.codes if isinstance(self.importance, CompactImportance) else self.importance

    @torch.inference_mode(False)
    def parameters(self) -> dict[str, nn.Parameter]:
        """The masked parameters. A parameter that becomes trainable later is added with importance 0.

        Importance follows a parameter that is renamed, as adapters and pruning do. It is an error if importance would
        be lost because its parameter has disappeared or changed its shape.
        """
        found, stored = named_parameters(self.backbone), self.stored
        require_maskable(found)
        joins = any(parameter.requires_grad and name not in stored for name, parameter in found.items())
        same = all(_same_shape(tensor, found.get(name)) for name, tensor in stored.items())
        same = same and all(known() is found.get(name) for name, known in self._objects.items() if name in stored)
        if joins or not same or not self._objects:
            self._follow_changes(found)
        return {name: found[name] for name in self.importance}

    def _follow_changes(self, found: Mapping[str, nn.Parameter]) -> None:
        was = {id(known()): name for name, known in self._objects.items() if name in self.importance}
        moved = {name: was[id(p)] for name, p in found.items() if was.get(id(p), name) != name}
        gone = [name for name, tensor in self.stored.items() if not _same_shape(tensor, found.get(name))]
        gone = [name for name in gone if name not in moved.values()]
        if lost := [name for name in gone if self._is_important(name)]:
            now = {name: f"has shape {tuple(found[name].shape)}" if name in found else "is gone" for name in lost}
            changes = (f"{name!r} {now[name]}, but its importance {tuple(self.stored[name].shape)}" for name in lost)
            raise ValueError(f"{'; '.join(changes)}: if that is intended, remove it (`del mask.importance[name]`)")
        self._warn_of_replaced(found, moved)
        along = {name: self.importance[old] for name, old in moved.items()}
        for name in {*moved.values(), *gone}:
            del self.importance[name]
        self.importance.update(along)
        for name, parameter in found.items():
            if parameter.requires_grad and name not in self.importance:
                self.importance[name] = torch.zeros_like(parameter, dtype=torch.float32, requires_grad=False)
        self._objects = {name: ref(found[name]) for name in self.importance}

    def _warn_of_replaced(self, found: Mapping[str, nn.Parameter], moved: Mapping[str, str]) -> None:
        """A new object under an old name: reloaded weights, or a new adapter after a merge."""
        known = [name for name, known in self._objects.items() if name in found and known() is not found[name]]
        stale = [name for name in known if name in self.stored and name not in {*moved, *moved.values()}]
        if replaced := [name for name in stale if self._is_important(name)]:
            warnings.warn(
                f"{len(replaced)} parameters were replaced by new ones of the same name, which inherit their "
                f"importance ({', '.join(map(repr, replaced[:3]))}{', ...' if len(replaced) > 3 else ''}). If they are "
                "new, as adapters after a merge are, earlier tasks are not protected: see docs/trainers.md.",
                stacklevel=4,
            )

    def _is_important(self, name: str) -> bool:
        return bool(_total(self.importance[name], lambda part: part != 0))

    def attach(
        self,
        optimizer: Optimizer,
        head: Head | None = None,
        scale: Literal["auto", "gradient", "update"] = "auto",
    ) -> Attachment:
        """Soft-mask every `optimizer.step()` from now on, until the handle is removed or its `with` block ends.

        `gradient` scales gradients before the step (eq. 6, 7). `update` scales the step that the optimizer took, which
        also protects under adaptive optimizers, weight decay and momentum from an earlier task. `auto` uses `gradient`
        only where both are always equal: plain SGD without weight decay and momentum. Where backbone and head have
        separate optimizers, attach to each of them.
        """
        return Attachment(self, optimizer, parameters_of(head), scale)

    def apply(self, head: Head | None = None) -> None:
        """Eq. 6 and 7 by hand, between `backward()` and `step()`: scales `.grad` in place.

        The same as `scale="gradient"`: protects under plain SGD only. Adaptive optimizers divide the factor out.
        """
        of_head = parameters_of(head)
        self.scale_gradients({id(parameter) for parameter in (*self.parameters().values(), *of_head)}, of_head)

    @torch.no_grad()
    def scale_gradients(self, of: Set[int], head: Sequence[nn.Parameter]) -> None:
        """Eq. 6 and 7 for the parameters with these ids; another optimizer may hold, and scale, the others."""
        watched = self.parameters()
        for name, parameter in watched.items():
            if parameter.grad is not None and id(parameter) in of:
                self._scale(parameter, self.stored[name])
        own = {id(parameter) for parameter in watched.values()}
        for parameter in head:
            if parameter.grad is not None and id(parameter) in of and id(parameter) not in own:
                parameter.grad.mul_(1 - self.mean())  # eq. 7

    def _scale(self, parameter: nn.Parameter, stored: Tensor) -> None:
        """Eq. 6. Factors are computed for some entries at a time and not stored: they would take a copy of the
        backbone."""
        gradient: Any = parameter.grad
        if gradient.is_sparse:
            # Not coalesced: summing repeated rows first would round differently than without a mask.
            indices, coalesced = gradient._indices(), gradient.is_coalesced()
            values = gradient._values() * self._factor(stored[tuple(indices.to(stored.device))], gradient)
            parameter.grad = torch.sparse_coo_tensor(
                indices, values, gradient.shape, check_invariants=False, is_coalesced=coalesced
            )
            return
        for some, of_them in pieces(local(gradient), local(stored)):
            some.mul_(self._factor(of_them, some))

    def _factor(self, stored: Tensor, like: Tensor) -> Tensor:
        return 1 - self.effective(decode(stored)).to(like.device)

    def factor(self, name: str, like: Tensor) -> Tensor:
        """One minus the (soft or hard) mask of a parameter, on its device: the factor of eq. 6."""
        return self._factor(self.stored[name], like)

    def consolidate(
        self,
        batches: Batches,
        head: Callable[[Any], Tensor],
        previous_heads: Sequence[Callable[[Any], Tensor]] = (),
        loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
    ) -> None:
        """Eq. 1-5: measure importance to the task just learned on its `(x, y)` batches, and accumulate it.

        Runs in the modules' current mode (dropout on, as the paper's authors do, if they are in train mode) and leaves
        weights, buffers, `.grad`, modes and the random state unchanged. Under `torch.distributed` every process calls
        it with its own batches; all end with the same importance.
        """
        self.parameters()  # reports lost importance before the measurement, which takes long
        self.update(combined_importance(self.backbone, batches, head, tuple(previous_heads), loss))

    @torch.inference_mode(False)
    @torch.no_grad()
    def update(self, importance: Mapping[str, Tensor]) -> None:
        """Eq. 5: the elementwise maximum with the accumulated importance. Nothing changes if any of it is refused."""
        watched = self.parameters()
        _require_same(watched, importance)
        for name, new in importance.items():
            _require_in_range(name, new)
        self._mean = None  # it holds on to what it was computed from, which is to be freed tensor by tensor
        for name, new in importance.items():
            old = self.importance[name]
            part = local(old).to(watched[name].device)  # the backbone may have been moved since
            self.importance[name] = shard_of(torch.maximum(part, local(new).to(part)), old)

    def mean(self) -> float:
        """The average in eq. 7, over all parameters together; of the binary mask if there is a threshold."""
        if self._mean is None or not self._mean[0].is_current(self.stored, self.threshold):
            total = sum(_total(self.effective(t), lambda part: part) for t in self.importance.values())
            self._mean = _CacheKey(self.stored, self.threshold), total / self._count()
        return self._mean[1]

    def blocked(self) -> float:
        """The fraction of parameters that cannot move at all: importance exactly 1, or above the threshold."""
        ones = sum(_total(self.effective(tensor), lambda part: part == 1) for tensor in self.importance.values())
        return ones / self._count()

    def _count(self) -> int:
        return max(1, sum(tensor.numel() for tensor in self.importance.values()))  # parameters may have no entries

    def state_dict(self) -> dict[str, Any]:
        """The state to save in a checkpoint; loads with `torch.load(..., weights_only=True)`."""
        return {"version": STATE_VERSION, "threshold": self.threshold, "importance": dict(self.stored)}

    @torch.inference_mode(False)
    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        version = state.get("version") if isinstance(state, Mapping) else None
        if version != STATE_VERSION:
            raise ValueError(f"the state has version {version!r}; this release reads {STATE_VERSION}")
        if missing := {"threshold", "importance"} - state.keys():
            raise ValueError(f"not the state of a SoftMask: it has no {' and no '.join(sorted(missing))}")
        watched, given = self.parameters(), state["importance"]
        if not isinstance(given, Mapping) or not all(isinstance(each, Tensor) for each in given.values()):
            raise ValueError("not the state of a SoftMask: its importance must be a tensor for each parameter")
        # A parameter that was trainable once keeps its importance, even if it is frozen now.
        again = {name: p for name, p in named_parameters(self.backbone).items() if name in given}
        _require_same({**watched, **again}, given)
        if absent := [name for name in watched if name not in given]:
            raise ValueError(
                f"the state has no importance of {', '.join(map(repr, absent))}: if a layer was frozen when it was "
                "saved, load the state before the layer is made trainable"
            )
        for name, tensor in given.items():
            _require_in_range(name, decode(tensor))
        self.threshold = state["threshold"]
        for name in [name for name in self.importance if name not in given]:
            del self.importance[name]
        for name, tensor in given.items():
            own = tensor.detach().to(again[name].device, copy=True)
            self.importance[name] = decode(own)
        self._objects = {name: ref(again[name]) for name in given}

    def effective(self, importance: Tensor) -> Tensor:
        """The mask that belongs to an importance: itself, or 1 above the threshold and 0 elsewhere."""
        return importance if self.threshold is None else (importance > self.threshold).to(importance.dtype)


def _require_in_range(name: str, importance: Tensor) -> None:
    part = local(importance)
    if not reduce_over_shards(((part >= 0) & (part <= 1)).all().to(torch.int32), importance, "min"):
        raise ValueError(f"importance of {name!r} must be from 0 to 1; nothing was changed")


def _total(tensor: Tensor, count: Callable[[Tensor], Tensor]) -> float:
    """A sum over all entries, including those that other processes hold."""
    return float(reduce_over_shards(count(local(tensor)).sum(dtype=torch.float64), tensor))


def _same_shape(importance: Tensor, parameter: Tensor | None) -> bool:
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


class _CacheKey:
    """Detects whether the threshold or an importance was replaced or changed in place since a value was derived from
    it."""

    def __init__(self, importance: Mapping[str, Tensor], threshold: float | None) -> None:
        # The tensors themselves are held: the id of a freed tensor may be reused.
        self._tensors = [(tensor, _version(tensor)) for tensor in importance.values()]
        self._threshold = threshold

    def is_current(self, importance: Mapping[str, Tensor], threshold: float | None) -> bool:
        if threshold != self._threshold or len(importance) != len(self._tensors):
            return False
        return all(
            then is now and version is not None and version == _version(now)
            for (then, version), now in zip(self._tensors, importance.values(), strict=True)
        )


def _version(tensor: Tensor) -> int | None:
    """Counts changes in place; a tensor made in inference mode does not count them."""
    return None if tensor.is_inference() else tensor._version
