"""The cost of soft-masking in a loop of one's own: `attach` per step, `consolidate` per batch, against the bare loop.

On standard layers, as a user would bring them: the AlexNet of the paper, and a transformer of ten million parameters.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from softmask import SoftMask

from .timing import Report, Timing, interleaved

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
OLD_HEADS, CLASSES, BATCHES = 4, 10, 4
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, lr=1e-3),
    "AdamW": lambda parameters: AdamW(parameters, lr=1e-4, weight_decay=0.01),
    "Adam": lambda parameters: Adam(parameters, lr=1e-4),
}


class Transformer(nn.Module):
    """Words to the mean over the sentence, through six layers of 384 units: about ten million parameters."""

    def __init__(self, layers: int = 6, width: int = 384, words: int = 3000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 6, 3 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.layers(self.words(x)).mean(1)
        return pooled


def alexnet() -> tuple[nn.Module, int, tuple[Tensor, Tensor]]:
    layers: list[nn.Module] = []
    for before, after, kernel, drop in ((3, 64, 4, 0.2), (64, 128, 3, 0.2), (128, 256, 2, 0.5)):
        layers += [nn.Conv2d(before, after, kernel), nn.ReLU(), nn.Dropout(drop), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(1024, 2048), nn.ReLU(), nn.Dropout(0.5)]
    layers += [nn.Linear(2048, 2048), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers), 2048, (torch.randn(64, 3, 32, 32), torch.randint(CLASSES, (64,)))


def transformer() -> tuple[nn.Module, int, tuple[Tensor, Tensor]]:
    return Transformer(), 384, (torch.randint(3000, (16, 64)), torch.randint(CLASSES, (16,)))


def _step(backbone: nn.Module, head: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    F.cross_entropy(head(backbone(batch[0])), batch[1]).backward()
    optimizer.step()


def _steps(make: Callable[[], tuple[nn.Module, int, Any]], optimizer: str) -> dict[str, Timing]:
    """One step of the bare loop and of the same loop with a mask that remembers something, each with its own model."""
    variants: dict[str, Callable[[], None]] = {}
    for name in ("bare", "masked"):
        torch.manual_seed(0)
        backbone, width, batch = make()
        head = nn.Linear(width, CLASSES)
        chosen = OPTIMIZERS[optimizer]([*backbone.parameters(), *head.parameters()])
        if name == "masked":
            mask = SoftMask(backbone)
            mask.update({part: torch.rand_like(p) for part, p in mask.parameters().items()})
            mask.attach(chosen, head=head)
        variants[name] = lambda b=backbone, h=head, o=chosen, xy=batch: _step(b, h, o, xy)
    return interleaved(variants, rounds=ROUNDS)


def _consolidations(make: Callable[[], tuple[nn.Module, int, Any]]) -> dict[str, Timing]:
    """Some batches: as many bare training steps, and `consolidate` without and with old heads."""
    torch.manual_seed(0)
    backbone, width, batch = make()
    heads = [nn.Linear(width, CLASSES) for _ in range(OLD_HEADS + 1)]
    optimizer = SGD([*backbone.parameters(), *heads[0].parameters()], lr=0.0)
    mask, batches = SoftMask(backbone), [batch] * BATCHES
    return interleaved(
        {
            "step": lambda: [_step(backbone, heads[0], optimizer, each) for each in batches],
            "own head": lambda: mask.consolidate(batches, heads[0]),
            "old heads": lambda: mask.consolidate(batches, heads[0], previous_heads=heads[1:]),
        },
        rounds=ROUNDS,
    )


def main() -> None:
    torch.set_num_threads(1)
    rows: list[tuple[Any, ...]] = []
    details: dict[str, Any] = {}
    for name, make in (("AlexNet", alexnet), ("transformer", transformer)):
        count = sum(p.numel() for p in make()[0].parameters())
        for optimizer in OPTIMIZERS:
            found = _steps(make, optimizer)
            ratio = found["masked"].median / found["bare"].median
            rows.append((name, f"{count:,}", f"attach, a step of {optimizer}", str(found["bare"]), f"{ratio:.3f} x"))
            details[f"{name} {optimizer}"] = found
        found = _consolidations(make)
        for kind, title in (("own head", "consolidate, a batch"), ("old heads", f"the same, {OLD_HEADS} old heads")):
            ratio = found[kind].median / found["step"].median
            rows.append((name, f"{count:,}", title, str(found["step"]), f"{ratio:.2f} x"))
        details[f"{name} consolidate"] = found
    columns = ("network", "parameters", "what", "the bare loop", "against it")
    notes = [f"One thread, float32. `consolidate` goes over {BATCHES} batches; beside it stand as many bare steps."]
    Report("own_model", columns, rows, notes).publish(details)


if __name__ == "__main__":
    main()
