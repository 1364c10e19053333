"""How much of an old task a projection of the gradient lets go, where a projection of the update keeps it.

A network of three layers learns a new task while every direction that its old inputs use is blocked (gradient
projection memory with all of the energy). What moves its old outputs all the same is what leaks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from softmask import SubspaceMask

from .timing import Report

PAGE = Path(__file__).parent.parent / "docs" / "core.md"
BEGIN, END = "<!-- leakage: written by make bench NAME=leakage -->", "<!-- end of leakage -->"
SEEDS, STEPS = range(5), 200
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=0.05),
    "SGD, momentum 0.9": lambda p: SGD(p, lr=0.01, momentum=0.9),
    "SGD, weight decay 0.01": lambda p: SGD(p, lr=0.05, weight_decay=0.01),
    "Adam": lambda p: Adam(p, lr=0.003),
    "AdamW, weight decay 0.01": lambda p: AdamW(p, lr=0.003, weight_decay=0.01),
}
WAYS = ("plain", "gradient", "update")


def drift(make: Callable[[Any], Optimizer], way: str, seed: int) -> float:
    """How far the outputs on old inputs move while a new task is learned, relative to their size."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    old = torch.randn(40, 8) @ torch.randn(8, 64) / 8**0.5  # uses 8 of 64 directions, and 40 of 128 further up
    new, labels = torch.randn(256, 64), torch.randint(10, (256,))
    mask = SubspaceMask(net, strength=1, rule="gpm")
    mask.consolidate([old])
    with torch.no_grad():
        before = net(old)
    optimizer = make(net.parameters())
    handle = mask.attach(optimizer, scale=way) if way != "plain" else None  # type: ignore[arg-type]
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(net(new), labels).backward()
        optimizer.step()
    if handle is not None:
        handle.remove()
    with torch.no_grad():
        return float((net(old) - before).norm() / before.norm())


def shown(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 1e-4 else f"{100 * share:.0e} %"


def main() -> None:
    torch.set_num_threads(1)
    found = {
        name: {way: sum(drift(make, way, seed) for seed in SEEDS) / len(SEEDS) for way in WAYS}
        for name, make in OPTIMIZERS.items()
    }
    columns = ("old outputs move by", "without a mask", "projected gradient", "projected update")
    rows = [(name, *(shown(drifts[way]) for way in WAYS)) for name, drifts in found.items()]
    notes = [f"Relative to their size, after {STEPS} steps on a new task; means over {len(SEEDS)} seeds."]
    Report("leakage", columns, rows, notes).publish({"drifts": found})
    lines = [f"| {' | '.join(row)} |" for row in (columns, ("---",) * len(columns), *rows)]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
