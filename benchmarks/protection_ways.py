"""Ways not to forget. Each hooks into the same loop; `parse` makes them from names like `answers=1+subspace=10`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

import softmask
from softmask import KeepAnswers, SoftMask, fisher_importance

from .protection_settings import Part, Setting, loss_of

MEASURED = 2000  # samples of a task that a mask is measured on, at most


class Way:
    """Plain fine-tuning: nothing is done."""

    factor = 1.0  # of the backbone's learning rate

    def __init__(self, setting: Setting, net: nn.Module, value: str) -> None:
        self.setting, self.net, self.value = setting, net, value
        self.made()

    def made(self) -> None:
        """After construction."""

    @property
    def strength(self) -> float:
        return float(self.value)

    def begin(self, heads: Sequence[nn.Module]) -> None:
        """Before a task."""

    def others(self) -> list[nn.Parameter]:
        """Parameters that are trained at the head's rate beside the head."""
        return []

    def attach(self, optimizer: Optimizer, head: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def term(self, x: Tensor, features: Tensor, draw: Generator) -> Tensor | float:
        return 0.0

    def after_step(self, rate: float) -> None:
        """After each step of the optimizer, with the backbone's present rate."""

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        """A task was learned; `heads` are those of the tasks before."""

    def at(self, task: int) -> contextlib.AbstractContextManager[Any]:
        """The model as it is to be used for a task."""
        return contextlib.nullcontext()


class Rate(Way):
    def made(self) -> None:
        self.factor = self.strength


class Freeze(Way):
    """`lower`: the lower layers; `all`: the whole backbone."""

    def begin(self, heads: Sequence[nn.Module]) -> None:
        names = self.setting.lower if self.value == "lower" else ("",)
        for name in names:
            self.net.get_submodule(name).requires_grad_(False)


class L2SP(Way):
    """Decoupled, as weight decay towards the weights before the task."""

    def begin(self, heads: Sequence[nn.Module]) -> None:
        self.old = [p.detach().clone() for p in self.net.parameters()]

    @torch.no_grad()
    def after_step(self, rate: float) -> None:
        for parameter, old in zip(self.net.parameters(), self.old, strict=True):
            parameter.lerp_(old, min(1.0, rate * self.strength))


class EWC(Way):
    """Fisher information of all tasks added up, around the weights of the last one."""

    def made(self) -> None:
        self.fisher: dict[str, Tensor] = {}

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        few = [(x, y) for x, y in zip(part.x[::4].split(20), part.y[::4].split(20), strict=True)]
        for name, new in fisher_importance(self.net, few, lambda x, y: loss_of(head(self.net(x)), y)).items():
            self.fisher[name] = self.fisher.get(name, 0) + new

    def begin(self, heads: Sequence[nn.Module]) -> None:
        self.old = {name: p.detach().clone() for name, p in self.net.named_parameters()}

    def term(self, x: Tensor, features: Tensor, draw: Generator) -> Tensor | float:
        moved = ((self.fisher[n] * (p - self.old[n]).pow(2)).sum() for n, p in self.net.named_parameters())
        return self.strength / 2 * sum(moved)


class Replay(Way):
    """A share of each old task's samples is kept; old heads go on learning."""

    def made(self) -> None:
        self.kept: list[Part] = []
        self.heads: Sequence[nn.Module] = ()

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        draw = torch.Generator().manual_seed(len(heads))
        rows = torch.randperm(len(part.y), generator=draw)[: int(len(part.y) * self.strength)]
        self.kept.append(Part(part.x[rows], part.y[rows]))

    def begin(self, heads: Sequence[nn.Module]) -> None:
        self.heads = heads

    def others(self) -> list[nn.Parameter]:
        return [p for head in self.heads for p in head.parameters()]

    def term(self, x: Tensor, features: Tensor, draw: Generator) -> Tensor | float:
        total: Tensor | float = 0.0
        for head, part in zip(self.heads, self.kept, strict=True):
            rows = torch.randint(len(part.y), (self.setting.batch // len(self.kept),), generator=draw)
            total = total + loss_of(head(self.net(part.x[rows])), part.y[rows])
        return total


class LowRank(nn.Module):
    """weight + up @ down."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, weight[0].numel()) / weight[0].numel() ** 0.5)
        self.up = nn.Parameter(torch.zeros(len(weight), rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.up @ self.down).view_as(weight)


class LoRA(Way):
    """`merged:R`: rank R, merged after each task; `task:R`: one for each task beside the weights of the first."""

    factor = 5.0

    def made(self) -> None:
        self.kind, rank = self.value.split(":")
        self.rank = int(rank)
        self.layers = [m for m in self.net.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        self.moves: list[list[tuple[nn.Module, Tensor]]] = []

    def begin(self, heads: Sequence[nn.Module]) -> None:
        self.net.requires_grad_(False)
        for layer in self.layers:
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, self.rank))

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        self.moves.append([])
        for layer in self.layers if heads else ():  # the first task is learned without
            base = layer.parametrizations.weight.original  # type: ignore[union-attr]
            self.moves[-1].append((layer, (layer.weight - base).detach()))
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=self.kind == "merged")

    @contextlib.contextmanager
    def at(self, task: int) -> Iterator[None]:
        moves = self.moves[task] if self.kind == "task" else []
        base = [layer.weight.detach().clone() for layer, _ in moves]  # type: ignore[operator]
        for layer, move in moves:
            layer.weight.data += move
        yield
        for (layer, _), weight in zip(moves, base, strict=True):
            layer.weight.data = weight


class SPG(Way):
    """`head`: the current head is soft-masked too (eq. 7); `body`: it is not."""

    def made(self) -> None:
        self.mask = SoftMask(self.net)

    def attach(self, optimizer: Optimizer, head: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return self.mask.attach(optimizer, head=head if self.value == "head" else None)

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        before = () if self.setting.width is None else heads
        self.mask.consolidate(batches(part, len(part.y)), head, before, loss_of)


class Answers(Way):
    """Distillation on the new samples: of old heads, of features, or of next tokens."""

    of = "answers"

    def begin(self, heads: Sequence[nn.Module]) -> None:
        asked = "tokens" if self.of == "answers" and self.setting.width is None else self.of
        old = heads if asked == "answers" else ()
        self.keep = KeepAnswers(self.net, old, self.strength, of=asked)  # type: ignore[arg-type]

    def term(self, x: Tensor, features: Tensor, draw: Generator) -> Tensor | float:
        return self.keep(x, features)


class Features(Answers):
    of = "features"


class Subspace(Way):
    def made(self) -> None:
        self.mask = softmask.SubspaceMask(self.net, strength=self.strength)

    def attach(self, optimizer: Optimizer, head: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return self.mask.attach(optimizer)

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        self.mask.consolidate(batches(part))


class Protect(Way):
    """The library's own combination at one strength."""

    precision: Any = "float32"

    def made(self) -> None:
        ways = ("tokens",) if self.setting.width is None else ("answers",)
        self.guard = softmask.protect(self.net, strength=self.strength, ways=ways, precision=self.precision)

    def attach(self, optimizer: Optimizer, head: nn.Module) -> contextlib.AbstractContextManager[Any]:
        return self.guard.attach(optimizer)

    def term(self, x: Tensor, features: Tensor, draw: Generator) -> Tensor | float:
        return self.guard(x, features)

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        self.guard.consolidate(batches(part), None if self.setting.width is None else head)


class ProtectPretrained(Protect):
    """The same of a model that was trained elsewhere: from the model alone, or with some of its old inputs."""

    labelled = False

    def made(self) -> None:
        """Nothing yet: the head is known at the end of the first task."""

    def end(self, part: Part, head: nn.Module, heads: Sequence[nn.Module]) -> None:
        if heads or (self.setting.width is None and hasattr(self, "guard")):
            self.guard.consolidate(head=None if self.setting.width is None else head)
            return
        rows = torch.randperm(len(part.y), generator=torch.Generator().manual_seed(0))[: int(self.value)]
        x, y = part.x[rows], part.y[rows]
        known = {"ways": ("tokens",), "pretrained": True} if self.setting.width is None else {"heads": head}
        self.guard = softmask.protect(self.net, sample=(x, y) if self.labelled else x, **known)  # type: ignore[arg-type]


class ProtectLabelled(ProtectPretrained):
    labelled = True


class ProtectHalf(Protect):
    """With a copy in bfloat16."""

    precision = "bfloat16"


WAYS: dict[str, type[Way]] = {
    "plain": Way,
    "lr": Rate,
    "freeze": Freeze,
    "l2sp": L2SP,
    "ewc": EWC,
    "replay": Replay,
    "lora": LoRA,
    "spg": SPG,
    "answers": Answers,
    "features": Features,
    "subspace": Subspace,
    "protect": Protect,
    "half": ProtectHalf,
    "inputs": ProtectPretrained,
    "labelled": ProtectLabelled,
}


def parse(name: str, setting: Setting, net: nn.Module) -> list[Way]:
    parts = [part.partition("=") for part in name.split("+")]
    return [WAYS[kind](setting, net, value) for kind, _, value in parts]


def batches(part: Part, most: int = MEASURED) -> list[tuple[Tensor, Tensor]]:
    few = torch.randperm(len(part.y), generator=torch.Generator().manual_seed(0))[:most]
    return [(part.x[rows], part.y[rows]) for rows in few.split(64)]
