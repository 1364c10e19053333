"""SubspaceMask: projects updates away from the directions of a layer's inputs that old tasks use.

A change D of a layer's weights changes its output by D x. If D is orthogonal to the inputs of old tasks, nothing
changes for them. The projection applies to the *update* that the optimizer took, not to the gradient: Adam's division
by its running variance, weight decay and momentum all turn a projected gradient back into directions that are in use.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from softmask.core.attachment import MaskedSteps, held_by
from softmask.core.directions import RULES, Projection, taken, with_task
from softmask.core.importance import preserved_state
from softmask.core.layer_inputs import Layer, Meets, entries_of, layers_of, observed
from softmask.core.moving import Moving, MovingEntries, MovingLayer
from softmask.core.parameters import named_trainable, parameters_of, require_maskable, unwrapped
from softmask.core.shards import any_sharded
from softmask.core.statistics import unprotected_statistics

STATE_VERSION = 1
Rule = Literal["sgp", "ridge", "gpm"]
Made = TypeVar("Made", Projection, Tensor)


class SubspaceMask:
    """Protects what a backbone has learned: updates are projected away from the inputs that old tasks use.

    `strength` runs from 0, plain training to the bit, to 1, where every direction in use is blocked; a higher strength
    always protects more. `rank` keeps only that many directions of wider layers, in O(rank * width) memory. Rules:
    "sgp" (scaled gradient projection) and "ridge" (a conceptor) scale each direction by its use; "gpm" takes directions
    as a whole until the share `strength` of a task's energy is covered.

    Linear layers, convolutions, embeddings (row by row) and attention are supported. Any other parameter, such as those
    of normalisation layers, counts as fully used.

        mask = SubspaceMask(backbone)
        with mask.attach(optimizer):
            ...                                   # your own training loop, unchanged
        mask.consolidate(batches)
    """

    def __init__(self, backbone: nn.Module, strength: float = 0.5, rank: int | None = None, rule: Rule = "sgp") -> None:
        _require_settings(strength, rank, rule)
        self.backbone, self.strength, self.rank, self.rule = backbone, strength, rank, rule
        self.used: dict[str, Tensor] = {}
        """By layer: the accumulated moment of its inputs, in float64 on the CPU. By other parameter: tasks so far."""
        self._forget()
        if not self.parameters():
            raise ValueError("the backbone has no parameter that requires grad: there is nothing to protect")
        if names := unprotected_statistics(unwrapped(backbone)):
            warnings.warn(
                f"running statistics are not parameters, so a mask does not protect them: {', '.join(names)}. "
                "Call softmask.freeze_running_statistics(backbone) once the first task is learned.",
                stacklevel=2,
            )
        self._look()

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a mask is not attached to any optimizer."""
        return {name: getattr(self, name) for name in ("backbone", "strength", "rank", "rule", "used")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()
        self._look()

    def _forget(self) -> None:
        self.attached: WeakSet[Optimizer] = WeakSet()
        self._layers: dict[str, Layer] = {}
        self._entries: dict[str, nn.Parameter] = {}
        self._meets: Meets = {}
        self._made: dict[tuple[Any, ...], tuple[Tensor, tuple[Any, ...], Any]] = {}

    def parameters(self) -> dict[str, nn.Parameter]:
        """The masked parameters: those of the backbone that require grad."""
        found = named_trainable(self.backbone)
        require_maskable(found)
        if any_sharded(found.values()):
            raise NotImplementedError("a SubspaceMask of sharded parameters: a process holds only a part of each layer")
        return found

    def _look(self) -> None:
        """Find the current layers. Their use is kept if a layer is renamed, as adapters do."""
        layers, meets = layers_of(self.backbone)
        entries = entries_of(self.backbone, layers.values())
        now = {identity: name for name, identity in _identities(layers, entries).items()}
        before = _identities(self._layers, self._entries)
        moved = {name: now.get(before.get(name, ()), name) for name in self.used}
        used = {moved[name]: tensor for name, tensor in self.used.items()}
        _require_fit(used, layers, entries, self.rank)
        self.used, self._layers, self._entries, self._meets = used, layers, entries, meets

    def attach(
        self,
        optimizer: Optimizer,
        head: nn.Module | Iterable[nn.Parameter] | None = None,
        scale: Literal["auto", "gradient", "update"] = "auto",
    ) -> SubspaceSteps:
        """Project every `optimizer.step()` from now on, until the handle is removed or its `with` block ends.

        A `head` is not masked, since a new task's head has nothing to protect. `update` projects the step that the
        optimizer took; `gradient` projects gradients before it, which protects only under plain SGD. `auto` uses
        `gradient` only where both are equal: SGD without weight decay and momentum.
        """
        self._look()
        return SubspaceSteps(self, optimizer, parameters_of(head), scale)

    def apply(self, head: object = None) -> None:
        """By hand, between `backward()` and `step()`: projects `.grad` in place. Protects only under plain SGD."""
        self._look()
        self.scale_gradients({id(parameter) for parameter in self.parameters().values()})

    @torch.no_grad()
    def scale_gradients(self, of: Set[int], head: Sequence[nn.Parameter] = ()) -> None:
        """Project the gradients of parameters with these ids."""
        for each in self.moving(of, with_gradient=True):
            each.project_gradient()

    def moving(self, of: Set[int], with_gradient: bool = False) -> list[MovingLayer | MovingEntries]:
        """The parts of the backbone with these parameter ids that are in use, with the blocked share of each."""
        if self.strength == 0 or not self.used:
            return []

        def moves(p: nn.Parameter | None) -> bool:
            # An optimizer updates every parameter that has a gradient, even if it no longer requires one.
            there = p is not None and id(p) in of
            return there and (p.grad is not None or (p.requires_grad and not with_gradient))  # type: ignore[union-attr]

        found: list[MovingLayer | MovingEntries] = []
        for name in self.used:
            if (layer := self._layers.get(name)) is None or layer.is_embedding:
                parameter = self._entries[name] if layer is None else layer.weight
                if moves(parameter):
                    found.append(MovingEntries(parameter, self._share(name, parameter)))
            elif (weight := moves(layer.weight)) | (bias := moves(layer.bias)):
                projection = self._projection(layer, weight, bias)
                if not projection.is_identity:
                    found.append(MovingLayer(layer, weight, bias, projection))
        return found

    def _projection(self, layer: Layer, weight: bool = True, bias: bool = True) -> Projection:
        """P for the weight, for the bias, or for both: parameters that are not updated cannot compensate for those that
        are."""
        columns = slice(0 if weight else layer.inputs, layer.width if bias else layer.inputs)

        def make(used: Tensor) -> Projection:
            return Projection(used, columns, self._taken, layer.weight)

        return self._made_once(layer.name, (columns.start, columns.stop), layer.weight, make)

    def _share(self, name: str, parameter: nn.Parameter) -> Tensor:
        """The blocked share of each row of an embedding, or of any other parameter as a whole."""

        def make(used: Tensor) -> Tensor:
            share = self._taken(used).to(torch.float32).to(parameter.device)
            return share[:, None] if share.dim() else share

        return self._made_once(name, (), parameter, make)

    def _taken(self, values: Tensor) -> Tensor:
        return taken(values, self.rule, self.strength)

    def _with_task(self, name: str, used: Tensor | None, moment: Tensor) -> Tensor:
        """The use of the layer (or other parameter) of this name with one more task."""
        return with_task(used, moment, self.rule, self.strength)

    def _made_once(self, name: str, part: tuple[int, ...], like: Tensor, make: Callable[[Tensor], Made]) -> Made:
        """Recomputed if the use, the settings or the backbone's device have changed since."""
        used, state = self.used[name], (self.strength, self.rule, like.device, like.dtype)
        key = (name, *part)
        known = self._made.get(key)
        if known is None or known[0] is not used or known[1] != state:
            self._made[key] = known = used, state, make(used)
        return known[2]

    @torch.inference_mode(False)
    @torch.no_grad()
    def consolidate(
        self, batches: Iterable[Any], head: object = None, previous_heads: object = (), loss: object = None
    ) -> None:
        """Measure the inputs of each layer on the batches of the task just learned, and protect them.

        A batch is `(x, y)`, of which only `x` is used, or `x`; a mapping is passed as keywords where the backbone takes
        them. Heads and loss are accepted so that masks are interchangeable, but not used. Runs with dropout off and
        restores modes, buffers and the random state. Under `torch.distributed` every process calls it with its own
        batches; all get the same result.
        """
        self._look()
        inner, trainable = unwrapped(self.backbone), self.parameters()
        watched = {id(parameter) for parameter in trainable.values()}
        layers = [each for each in self._layers.values() if {id(each.weight), id(each.bias)} & watched]
        sums = {each.name: each.accumulator(self.rank) for each in layers}
        meets = {
            m: known for m, of in self._meets.items() if (known := [(r, each) for r, each in of if each.name in sums])
        }
        with preserved_state(inner), torch.no_grad(), observed(meets, lambda each, rows: sums[each.name].add(rows)):
            inner.eval()
            for batch in batches:
                _run(inner, batch)
        self._made = {}  # projections that are recomputed anyway; memory is freed layer by layer
        moments = {name: sums.pop(name).normalised() for name in list(sums)}
        _require_measured(moments)
        moments |= {name: torch.ones((), dtype=torch.float64) for name in self._entries if name in trainable}
        for name in list(moments):
            self.used[name] = self._with_task(name, self.used.get(name), moments.pop(name))

    def free(self) -> dict[str, float]:
        """The free capacity of each layer (and other parameter), from 0 to 1."""
        self._look()
        found = {}
        for name, each in (*self._layers.items(), *self._entries.items()):
            if name not in self.used or self.strength == 0:
                found[name] = 1.0
            elif isinstance(each, Layer) and not each.is_embedding:
                found[name] = self._projection(each, bias=each.bias is not None).free
            else:
                found[name] = 1 - float(self._taken(self.used[name]).mean())
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state to save in a checkpoint; loads with `torch.load(..., weights_only=True)`."""
        settings = {"strength": self.strength, "rank": self.rank, "rule": self.rule}
        return {"version": STATE_VERSION, **settings, "used": dict(self.used)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the state has version {state.get('version')!r}; this release reads {STATE_VERSION}")
        _require_settings(state["strength"], state["rank"], state["rule"])
        self._look()
        given: Mapping[str, Tensor] = state["used"]
        _require_fit(given, self._layers, self._entries, state["rank"])
        watched = {id(p) for p in self.parameters().values()}
        known = (*self._layers.items(), *self._entries.items())
        wanted = [name for name, each in known if id(each.weight if isinstance(each, Layer) else each) in watched]
        if given and (missing := [name for name in wanted if name not in given]):
            raise ValueError(
                f"the state has no use of {', '.join(map(repr, missing))}: if a layer was frozen when it was saved, "
                "load the state before the layer is made trainable"
            )
        self.strength, self.rank, self.rule = state["strength"], state["rank"], state["rule"]
        self.used = {name: tensor.detach().to("cpu", torch.float64, copy=True) for name, tensor in given.items()}


class SubspaceSteps(MaskedSteps):
    """The handle that `SubspaceMask.attach` returns."""

    mask: SubspaceMask

    def _moving(self) -> Sequence[Moving]:
        return self.mask.moving(held_by(self.optimizer))


def _identities(layers: Mapping[str, Layer], entries: Mapping[str, nn.Parameter]) -> dict[str, tuple[Any, ...]]:
    of_layers = {name: (id(each.weight), each.is_embedding, each.part) for name, each in layers.items()}
    return {**of_layers, **{name: (id(parameter),) for name, parameter in entries.items()}}


def _run(backbone: nn.Module, batch: Any) -> None:
    if isinstance(batch, (tuple, list)):
        if len(batch) not in (1, 2):
            raise ValueError(f"a batch must be (x, y) or x, not {len(batch)} values")
        batch = batch[0]
    if isinstance(batch, Mapping) and _takes(backbone, batch):
        backbone(**batch)
    else:
        backbone(batch)


def _takes(backbone: nn.Module, keywords: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(backbone.forward).bind(**keywords)
    except TypeError:
        return False
    return True


def _require_settings(strength: float, rank: int | None, rule: str) -> None:
    if not 0 <= strength <= 1:
        raise ValueError(f"strength must be in 0..1, not {strength!r}")
    if rank is not None and rank < 1:
        raise ValueError(f"rank must be at least 1, or None for all directions, not {rank!r}")
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, not {rule!r}")


def _require_measured(moments: Mapping[str, Tensor]) -> None:
    if strange := [name for name, moment in moments.items() if not moment.isfinite().all()]:
        raise FloatingPointError(f"inputs of {', '.join(map(repr, strange))} are not finite; nothing was changed")
    unseen = [name for name, moment in moments.items() if not moment.any()]
    if moments and len(unseen) == len(moments):
        raise ValueError("no batches: no layer has met an input")
    if unseen:
        warnings.warn(f"layers without inputs are not protected: {', '.join(unseen)}", stacklevel=3)


def _require_fit(
    used: Mapping[str, Tensor], layers: Mapping[str, Layer], entries: Mapping[str, nn.Parameter], rank: int | None
) -> None:
    """Names and shapes must fit the backbone; the error lists every difference."""
    problems = [f"{name!r} is not in the backbone" for name in used if name not in layers and name not in entries]
    for name, tensor in used.items():
        expected = _shape(layers[name], rank) if name in layers else ()
        if (name in layers or name in entries) and tuple(tensor.shape) != expected:
            problems.append(f"{name!r} has shape {tuple(tensor.shape)}, the backbone needs {expected}")
    if problems:
        raise ValueError("the stored use does not fit the backbone: " + "; ".join(problems))


def _shape(layer: Layer, rank: int | None) -> tuple[int, ...]:
    if layer.is_embedding:
        return (layer.inputs,)
    return layer.groups, layer.width, layer.width if rank is None else min(rank, layer.width)
