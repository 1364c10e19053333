"""protect: several protections of a backbone with one strength, from plain training to a frozen backbone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.core.answers import Forward, KeepAnswers, Of, Precision, call
from softmask.core.heads import Heads, frozen_copy, one_or_many, rebuilt_heads
from softmask.core.importance import repeatable
from softmask.core.mask import SoftMask
from softmask.core.parameters import unwrapped
from softmask.core.sample import AT_ONCE, KeepSample
from softmask.core.statistics import freeze_running_statistics
from softmask.core.subspace import SubspaceMask

TERMS = ("answers", "features", "tokens")
MASKS = ("subspace", "spg")
STATE_VERSION = 1
SUBSPACE_SHARE = 0.1
"""Beside answers, a subspace mask of full strength lowered the accuracy of new tasks by two points (one seed)."""


def protect(
    model: nn.Module,
    heads: Heads = (),
    strength: float = 0.5,
    ways: Sequence[str] = ("answers",),
    forward: Forward = call,
    *,
    pretrained: bool = False,
    sample: Any = None,
    precision: Precision = "float32",
) -> Guard:
    """Protects what a backbone has learned, with one `strength`: 0 is plain training, 1 a frozen backbone.

        guard = protect(backbone, strength=0.5)
        for head, loader in tasks:
            with guard.attach(optimizer):                       # masks the optimizer's steps
                for x, y in loader:
                    features = backbone(x)
                    loss = F.cross_entropy(head(features), y) + guard(x, features)
                    ...
            guard.consolidate(loader, head)                     # protect this task from now on

    Protections (`ways`): "answers" of old heads on the new images, "features", or next "tokens" of a language model
    (`KeepAnswers`); "subspace", the directions that old tasks use (`SubspaceMask`); "spg", the paper's soft mask
    (`SoftMask`).
    No old data are stored, and only the heads grow with the number of tasks. Running statistics of normalisation layers
    are frozen while a guard that has something to protect is attached.

    The first task is not constrained, unless the model is pretrained: then pass its `heads`, or `pretrained=True` for
    the protections that need none (features, tokens). No old data are needed. With a `sample` of them, inputs `x` or
    `(x, y)` with labels, the model's answers to them are kept, too, in each step (`KeepSample`), and masks are measured
    on them.

    `precision="bfloat16"` stores the teacher's copy and the soft mask in two bytes per parameter instead of four.
    """
    return Guard(model, heads, strength, ways, forward, pretrained=pretrained, sample=sample, precision=precision)


class Guard:
    """The protection that `protect` returns. `parts` holds its protections by name."""

    def __init__(
        self,
        model: nn.Module,
        heads: Heads,
        strength: float,
        ways: Sequence[str],
        forward: Forward = call,
        *,
        pretrained: bool = False,
        sample: Any = None,
        precision: Precision = "float32",
    ) -> None:
        _require_settings(strength, ways)
        self.model, self.strength, self.ways, self.precision = model, strength, tuple(ways), precision
        self.heads = [frozen_copy(head) for head in one_or_many(heads)]
        x, y = sample if isinstance(sample, tuple) else (sample, None)
        if pretrained or sample is not None:
            _require_known(self.ways, self.heads, sample is not None, y is not None)
        self.learned = bool(self.heads) or pretrained or sample is not None
        """Whether there is a task to protect yet."""
        self.parts: dict[str, KeepAnswers | SubspaceMask | SoftMask] = {}
        self.samples: dict[str, KeepSample] = {}
        """For each protection that is a term of the loss, if a sample was given."""
        with _without_statistics_warning():
            for way in self.ways:
                self.parts[way] = self._part(way, forward)
        if sample is not None:
            self._take(x, y, forward)

    def _take(self, x: Any, y: Any, forward: Forward) -> None:
        for way, part in self.parts.items():
            if isinstance(part, KeepAnswers):
                labels = None if way == "features" else y
                self.samples[way] = KeepSample(
                    self.model, x, labels, part.heads, part.strength, part.of, forward=forward
                )
            elif self.strength > 0:
                with _without_statistics_warning():
                    batches = list(zip(x.split(AT_ONCE), (x if y is None else y).split(AT_ONCE), strict=True))
                    if isinstance(part, SubspaceMask):
                        part.consolidate(batches)
                    else:
                        part.consolidate(batches, self.heads[-1], self.heads[:-1])

    def _part(self, way: str, forward: Forward) -> KeepAnswers | SubspaceMask | SoftMask:
        if way == "subspace":
            odds = SUBSPACE_SHARE * self.strength
            return SubspaceMask(self.model, strength=odds / (odds + 1 - self.strength))
        if way == "spg":
            return SharpenedMask(self.model, self.strength, self.precision)
        known = self.heads if way == "answers" else ()
        weight, of = self._weight(), cast(Of, way)
        return KeepAnswers(self.model, known, weight, of=of, forward=forward, precision=self.precision)

    def _weight(self) -> float:
        """The weight of a term of the loss: 1 at strength 0.5. A frozen backbone needs no term."""
        return self.strength / (1 - self.strength) if self.strength < 1 else 0.0

    def attach(self, optimizer: Optimizer) -> GuardedSteps:
        """Mask every `optimizer.step()` until the handle is removed or its `with` block ends.

        Where the backbone's parameters have several optimizers, attach to each of them.
        """
        if self.strength == 0 or not self.learned:
            return GuardedSteps([])
        parts = [_everything(self.model)] if self.strength == 1 else list(self.parts.values())
        steps = [part.attach(optimizer) for part in parts if not isinstance(part, KeepAnswers)]
        return GuardedSteps([*steps, *freeze_running_statistics(unwrapped(self.model))])

    def __call__(self, x: Any, features: Any = None, *, mask: Tensor | None = None) -> Tensor:
        """The sum of the loss terms on this batch, with the arguments of `KeepAnswers`; 0 if there are none."""
        total = torch.zeros((), device=next(self.model.parameters()).device)
        if self.learned:
            for part in self.parts.values():
                if isinstance(part, KeepAnswers) and part.active():
                    total = total + part(x, features, mask=mask)
            for sample in self.samples.values():
                total = total + sample()
        return total

    def consolidate(
        self,
        batches: Iterable[Any] = (),
        head: nn.Module | None = None,
        loss: Callable[[Tensor, Any], Tensor] = F.cross_entropy,
    ) -> None:
        """Protect the task just learned from now on, with the current model and this head.

        "subspace" and "spg" need `(x, y)` batches of the task: "subspace" uses only `x`, and "spg" measures importance
        by `loss(head(model(x)), y)`. If you replace the weights, for example by an average of them, do so before this
        call: later changes are not protected.
        """
        if head is None and (asking := [way for way in ("answers", "spg") if way in self.ways]):
            raise ValueError(f"{asking[0]!r} needs the head that was learned: consolidate(batches, head)")
        if self.strength > 0:
            batches = repeatable(batches)
            for part in self.parts.values():
                if isinstance(part, SubspaceMask):
                    part.consolidate(batches)
                elif isinstance(part, SoftMask):
                    part.consolidate(batches, head, self.heads, loss)  # type: ignore[arg-type]
        if head is not None:
            self.heads.append(frozen_copy(head))
        for way, part in self.parts.items():
            if isinstance(part, KeepAnswers):
                part.remember(self.heads if way == "answers" else ())
        self.learned = True

    def state_dict(self) -> dict[str, Any]:
        """The state to save in a checkpoint, also within a task; loads with `torch.load(weights_only=True)`."""
        return {
            "version": STATE_VERSION,
            "strength": self.strength,
            "ways": list(self.ways),
            "learned": self.learned,
            "heads": [head.state_dict() for head in self.heads],
            "parts": {way: part.state_dict() for way, part in self.parts.items()},
            "samples": {way: sample.state_dict() for way, sample in self.samples.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Heads that are not linear must be passed to `protect`, as must the sample; linear heads are re-created."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}; this release reads {STATE_VERSION}")
        for name, own in (("strength", self.strength), ("ways", list(self.ways))):
            if state[name] != own:
                raise ValueError(f"the state was saved with {name}={state[name]!r}, not {own!r}")
        samples = state.get("samples", {})
        if samples.keys() != self.samples.keys():
            raise ValueError("the state was saved with a sample, give it again" if samples else "it has no sample")
        heads = rebuilt_heads(self.heads, state["heads"], next(self.model.parameters()).device)
        for way, part in self.parts.items():
            part.load_state_dict(state["parts"][way])
        for way, sample in self.samples.items():
            sample.load_state_dict(samples[way])
        self.heads, self.learned = heads, state["learned"]


class GuardedSteps:
    """The handle that `Guard.attach` returns: a context manager with `remove()`."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = list(handles)

    def remove(self) -> None:
        """Stop masking the optimizer's steps. May be called repeatedly."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> GuardedSteps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handles, self._handles = self._handles, []
        for handle in reversed(handles):
            handle.__exit__(kind, error, trace)


class SharpenedMask(SoftMask):
    """A soft mask with a strength: importance to the power of (1 - strength) / strength; unchanged at 0.5."""

    def __init__(self, backbone: nn.Module, strength: float, precision: Precision = "float32") -> None:
        self.strength = strength
        super().__init__(backbone, precision=precision)

    def effective(self, importance: Tensor) -> Tensor:
        if self.strength == 0.5:
            return importance
        return importance ** ((1 - self.strength) / self.strength) if self.strength else torch.zeros_like(importance)


def _everything(model: nn.Module) -> SoftMask:
    """A mask that blocks everything, with one number per parameter tensor."""
    with _without_statistics_warning():
        mask = SoftMask(model)
    for name, importance in mask.importance.items():
        mask.importance[name] = torch.ones((), device=importance.device).expand_as(importance)
    return mask


@contextmanager
def _without_statistics_warning() -> Iterator[None]:
    """A guard freezes running statistics itself, so masks need not warn about them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="running statistics")
        yield


def _require_known(ways: Sequence[str], heads: Sequence[nn.Module], sampled: bool, labelled: bool) -> None:
    """Checks that a pretrained model comes with everything its protections need; otherwise nothing would be
    protected."""
    if "answers" in ways and not heads:
        raise ValueError("'answers' of a pretrained model need its heads: heads=..., or ways=('features',) without")
    if "spg" in ways and not (labelled and heads):
        raise ValueError("'spg' of a pretrained model needs its head and a labelled sample: heads=..., sample=(x, y)")
    if tuple(ways) == ("subspace",) and not sampled:
        raise ValueError("'subspace' of a pretrained model needs inputs: sample=x")


def _require_settings(strength: float, ways: Sequence[str]) -> None:
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in 0..1, not {strength!r}")
    if isinstance(ways, str):
        raise ValueError(f"ways must be a sequence of names, as ({ways!r},), not {ways!r}")
    if unknown := [way for way in ways if way not in (*TERMS, *MASKS)]:
        raise ValueError(f"ways must be of {', '.join((*TERMS, *MASKS))}, not {unknown[0]!r}")
    if not ways or len(set(ways)) < len(ways):
        raise ValueError(
            f"ways must name at least one protection, and none twice: {', '.join(ways) or 'there is none'}"
        )
