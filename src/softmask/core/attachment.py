"""A soft mask on an optimizer: hooks before and after each step of any optimizer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence, Set
from functools import wraps
from types import FrameType, MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from softmask.core.in_turn import InTurn, moves_one_by_one
from softmask.core.moving import Moving, MovingEntries, MovingSoftly, Remembered
from softmask.core.parameters import require_maskable
from softmask.core.shards import local

if TYPE_CHECKING:
    from softmask.core.mask import SoftMask

SCALES = ("auto", "gradient", "update")
Steps = TypeVar("Steps", bound="MaskedSteps")


class Mask(Protocol):
    """The masks of one step."""

    attached: WeakSet[Optimizer]

    def parameters(self) -> dict[str, nn.Parameter]: ...

    def scale_gradients(self, of: Set[int], head: Sequence[nn.Parameter]) -> None: ...


def concerned(mask: Mask, optimizer: Optimizer, head: Sequence[nn.Parameter]) -> bool:
    """Whether the optimizer updates any parameter of the backbone or the head."""
    held = held_by(optimizer)
    return any(id(parameter) in held for parameter in (*mask.parameters().values(), *head))


def held_by(optimizer: Optimizer) -> set[int]:
    """The ids of the parameters it may update. Computed anew for each step, since groups may be added."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _usable(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(local(gradient).isfinite().all())


class MaskedSteps:
    """A handle on an optimizer whose steps are masked: a context manager with `remove()`. A subclass for another kind
    of mask overrides `_moving`, the parameters of a step that the mask affects.
    """

    def __init__(self, mask: Mask, optimizer: Optimizer, head: Sequence[nn.Parameter], scale: str) -> None:
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, not {scale!r}")
        # Trainers wrap an optimizer in another that has no hooks of its own; the inner one takes the steps. One that
        # has them adds something of its own to the inner steps, which is to be masked with them.
        while not hasattr(optimizer, "_optimizer_step_pre_hooks") and isinstance(
            inner := getattr(optimizer, "optimizer", None), Optimizer
        ):
            optimizer = inner
        if optimizer in mask.attached:
            raise RuntimeError("this mask is already attached to this optimizer: remove() the earlier handle first")
        if not concerned(mask, optimizer, head):
            raise ValueError("the optimizer holds no parameter of the backbone or the head: it needs no mask")
        require_maskable({f"head parameter {index}": parameter for index, parameter in enumerate(head)})
        self.mask, self.optimizer, self.head, self.scale = mask, optimizer, list(head), scale
        self._outermost: FrameType | None = None
        self._stepped = False
        self._remembered: Remembered | InTurn | None = None
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._unguarded, self._guarded = vars(optimizer).get("step"), self._guarded_step()
        optimizer.step = self._guarded  # type: ignore[method-assign]
        mask.attached.add(optimizer)

    def remove(self) -> None:
        """Stop masking the optimizer's steps. May be called repeatedly."""
        if not self._hooks:
            return  # a later attachment to the same optimizer is not this handle's business
        for hook in self._hooks:
            hook.remove()
        if vars(self.optimizer).get("step") is self._guarded:  # else somebody, as a scheduler, has wrapped it since
            del self.optimizer.step
            if self._unguarded is not None:
                self.optimizer.step = self._unguarded  # type: ignore[method-assign]
        self._hooks, self._outermost = [], None
        self.mask.attached.discard(self.optimizer)

    def __enter__(self: Steps) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A scaler that skips a step leaves gradients that are not finite.
        if self._hooks and not self._stepped and error is None and any(_usable(p.grad) for p in self._own()):
            warnings.warn(
                "gradients were made, but no `step()` of this optimizer was seen: nothing was masked. Attach to the "
                "optimizer that takes the steps.",
                stacklevel=2,
            )
        self.remove()

    def _own(self) -> list[nn.Parameter]:
        held = held_by(self.optimizer)
        return [p for p in (*self.mask.parameters().values(), *self.head) if id(p) in held]

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._inside_a_step():
            return None
        self._stepped, self._remembered = True, None
        if not self._scales_gradients():
            return self._remember(optimizer, args, kwargs)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.mask.scale_gradients(held_by(optimizer), self.head)
            return None
        # The closure computes the gradients, so they are scaled right after it.
        return (args[0], self._masked(closure), *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    def _after_step(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            if sys._getframe(1) is not self._outermost:
                return
            self._outermost = None
        self._mask_remembered()

    def _remember(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The values before the step: of a part of the parameters at a time, where the optimizer allows it."""
        moving = self._moving()
        if not moving:
            return None
        if torch.compiler.is_compiling() or not moves_one_by_one(optimizer):
            self._remembered = Remembered(moving)
            return None
        # Masks on the same optimizer share the parts, and mask each in the order in which they were attached.
        in_turn = args[0] if isinstance(args[0], InTurn) else InTurn(optimizer)
        in_turn.moving += moving
        self._remembered = in_turn
        return (in_turn, *args[1:]), kwargs

    def _mask_remembered(self) -> None:
        if self._remembered is not None:
            self._remembered.mask_update()
            self._remembered = None

    def _guarded_step(self) -> Any:
        """The optimizer's `step`. If it raises half-way, the partial step is masked at once, since no post hook
        follows."""
        unguarded = self.optimizer.step

        @wraps(unguarded)
        def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return unguarded(*args, **kwargs)
            try:
                return unguarded(*args, **kwargs)
            except BaseException:
                self._mask_remembered()
                raise

        return MethodType(step, self.optimizer)  # schedulers expect a bound method

    def _moving(self) -> Sequence[Moving]:
        raise NotImplementedError

    def _inside_a_step(self) -> bool:
        """Whether the optimizer's own `step` called that of its parent class, which has hooks too.

        The outermost call is identified by its frame: a step that raised never ends, but its frame is on no stack.
        """
        if torch.compiler.is_compiling():
            return False
        step = frame = sys._getframe(2)
        while self._outermost is not None and frame is not None:
            if frame is self._outermost:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        self._outermost = step
        return False

    def _masked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def masked_closure() -> Any:
            result = closure()
            self.mask.scale_gradients(held_by(self.optimizer), self.head)
            return result

        return masked_closure

    def _scales_gradients(self) -> bool:
        if self.scale != "auto":
            return self.scale == "gradient"
        if type(self.optimizer) is not SGD:
            return False
        # Momentum may hold gradients that were accumulated under another mask, or none: they would bypass this one.
        return not any(group["weight_decay"] or group["momentum"] for group in self.optimizer.param_groups)


class Attachment(MaskedSteps):
    """The handle that `SoftMask.attach` returns."""

    mask: SoftMask

    def _moving(self) -> Sequence[Moving]:
        if self.mask.mean() == 0:
            return []  # the first task is free
        watched, stored = self.mask.parameters(), self.mask.stored
        own = {id(parameter) for parameter in watched.values()}
        # An optimizer updates every parameter that has a gradient, even if it no longer requires one.
        held = held_by(self.optimizer)
        of_backbone = [
            MovingSoftly(p, stored[name], self.mask.effective) for name, p in watched.items() if id(p) in held
        ]
        of_head = [MovingEntries(p, self.mask.mean()) for p in self.head if id(p) in held and id(p) not in own]  # eq. 7
        return [*of_backbone, *of_head]
