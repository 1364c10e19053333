"""The loops that `memory` measures: two networks, and each protection in the middle of a second task."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from softmask import KeepAnswers, SoftMask, SubspaceMask, protect

from .own_model import CLASSES, Transformer
from .own_model import alexnet as alexnet_and_batch

RANK, LORA_RANK = 32, 16
NETWORKS: dict[str, Callable[[], tuple[nn.Module, int]]] = {
    "AlexNet": lambda: alexnet_and_batch()[:2],
    "transformer": lambda: (Transformer(), 384),
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, lr=1e-3),
    "AdamW": lambda parameters: AdamW(parameters, lr=1e-4, weight_decay=0.01),
}
WAYS = (
    *("bare loop", "SoftMask", "SoftMask, bfloat16", "SoftMask, uint8", "SubspaceMask", f"SubspaceMask, rank {RANK}"),
    *(
        "KeepAnswers, copy",
        "KeepAnswers, recorded",
        "protect",
        "protect, bfloat16",
        "LoRA: bare loop",
        "LoRA: KeepAnswers, adapter-off",
    ),
)


class Adapted(nn.Module):
    """A linear layer that is frozen, and an adapter of low rank beside it (LoRA; Hu et al., 2022)."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.is_on = layer, True
        like = {"dtype": layer.weight.dtype}
        self.down = nn.Linear(layer.in_features, LORA_RANK, bias=False, **like)  # type: ignore[arg-type]
        self.up = nn.Linear(LORA_RANK, layer.out_features, bias=False, **like)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out + self.up(self.down(x)) if self.is_on else out


class WithAdapters(nn.Module):
    """As peft makes it, in the part that `teacher="adapter-off"` needs."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        for parent in [*backbone.modules()]:
            if not isinstance(parent, nn.MultiheadAttention):  # reads its layer's weights and never calls it
                for name, layer in parent.named_children():
                    if isinstance(layer, nn.Linear):
                        parent.add_module(name, Adapted(layer))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.backbone(x)
        return out

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        layers = [module for module in self.modules() if isinstance(module, Adapted)]
        for layer in layers:
            layer.is_on = False
        yield
        for layer in layers:
            layer.is_on = True


@dataclass
class Loop:
    backbone: nn.Module
    head: nn.Module
    optimizer: Optimizer
    batches: list[tuple[Tensor, Tensor]]
    mask: SoftMask | SubspaceMask | None
    keep: Callable[[int, Tensor, Tensor], Tensor] | None

    def __post_init__(self) -> None:
        self.numbers = itertools.cycle(range(len(self.batches)))

    def step(self) -> None:
        number = next(self.numbers)
        x, y = self.batches[number]
        self.optimizer.zero_grad()
        features = self.backbone(x)
        loss = F.cross_entropy(self.head(features).float(), y)
        if self.keep is not None:
            loss = loss + self.keep(number, x, features)
        loss.backward()
        self.optimizer.step()

    def consolidate(self, old_heads: int = 0) -> None:
        assert self.mask is not None
        heads = [copy.deepcopy(self.head) for _ in range(old_heads)]
        self.mask.consolidate(self.batches, self.head, heads)


def made(network: str, optimizer: str, way: str, samples: int, dtype: torch.dtype = torch.float32) -> Loop:
    """A loop in its second task, with something to protect. Small batches leave the memory to the parameters."""
    torch.manual_seed(0)
    backbone, width = NETWORKS[network]()
    if way.startswith("LoRA"):
        backbone = WithAdapters(backbone)
    backbone, head, old = backbone.to(dtype), nn.Linear(width, CLASSES).to(dtype), nn.Linear(width, CLASSES).to(dtype)
    batches = [_batch(network, samples, dtype) for _ in range(4)]
    trained = [p for p in (*backbone.parameters(), *head.parameters()) if p.requires_grad]
    made = OPTIMIZERS[optimizer](trained)
    mask = _mask(backbone, way)
    if isinstance(mask, SoftMask):
        mask.update({name: torch.rand(p.shape) for name, p in mask.parameters().items()})
    elif mask is not None:
        mask.consolidate(batches)
        state = mask.state_dict()
        mask.load_state_dict({**state, "used": {name: _spread(used) for name, used in state["used"].items()}})
    if mask is not None:
        mask.attach(made)
    return Loop(backbone, head, made, batches, mask, _keep(backbone, old, made, batches, way))


def _batch(network: str, samples: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    if network == "AlexNet":
        return torch.randn(samples, 3, 32, 32, dtype=dtype), torch.randint(CLASSES, (samples,))
    return torch.randint(3000, (max(1, samples // 8), min(64, 8 * samples))), torch.randint(
        CLASSES, (max(1, samples // 8),)
    )


def _mask(backbone: nn.Module, way: str) -> SoftMask | SubspaceMask | None:
    kind, _, how = way.partition(", ")
    if kind == "SoftMask":
        return SoftMask(backbone, precision=how or "float32")  # type: ignore[arg-type]
    if kind == "SubspaceMask":
        return SubspaceMask(backbone, rank=RANK if how else None)
    return None


def _spread(used: Tensor) -> Tensor:
    """As after many samples: every direction of which there is a place is in use."""
    if used.dim() < 3:
        return used
    return used + (0.01 * torch.eye(used.shape[1]) if used.shape[1] == used.shape[2] else torch.randn(used.shape))


def _keep(
    backbone: nn.Module, old: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]], way: str
) -> Callable[[int, Tensor, Tensor], Tensor] | None:
    if way.startswith("protect"):
        guard = protect(backbone, heads=old, precision="bfloat16" if way.endswith("bfloat16") else "float32")
        guard.attach(optimizer)
        return lambda number, x, features: guard(x, features)
    if "KeepAnswers" not in way:
        return None
    teacher: Any = way.rpartition(", ")[2]
    keep = KeepAnswers(backbone, old, teacher=teacher)
    if teacher != "recorded":
        return lambda number, x, features: keep(x, features)

    def index(number: int) -> range:
        size = len(batches[0][1])
        return range(number * size, (number + 1) * size)

    keep.record((index(number), x) for number, (x, _) in enumerate(batches))
    return lambda number, x, features: keep(x, features, index=index(number))
