"""Cross-head importance through many old heads: ours against a full pass for each head. 256 images, dropout on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from softmask.core.importance import cross_head_importance

from .setup import CLASSES, random_images, scenario
from .textbook import TextbookSPG
from .timing import Report

IMAGES, BATCH = 256, 64
HEADS = (1, 10, 20, 50, 100)
TIMED_HEADS = 4  # the textbook form is linear in the heads: it is timed on a few and multiplied


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = random_images(IMAGES)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def ours(heads: int) -> float:
    torch.manual_seed(0)
    backbone = scenario().backbone().train()
    old = [nn.Linear(2048, CLASSES) for _ in range(heads)]
    data = batches()
    cross_head_importance(backbone, data[:1], old[:1])
    start = time.perf_counter()
    cross_head_importance(backbone, data, old)
    return time.perf_counter() - start


def textbooks(heads: int) -> float:
    torch.manual_seed(0)
    timed = min(heads, TIMED_HEADS)
    book = TextbookSPG(timed, CLASSES)
    data = batches()
    book.importance_through(data[:1], 1)
    start = time.perf_counter()
    book.importance_through(data, timed)
    return (time.perf_counter() - start) * heads / timed


def extra_memory(heads: int) -> float:
    """Peak resident memory over a forward pass, in copies of the backbone; in a process of its own."""
    code = f"from benchmarks.importance import peak; print(peak({heads}))"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def peak(heads: int) -> float:
    torch.set_num_threads(1)
    backbone = scenario().backbone().train()
    old = [nn.Linear(2048, CLASSES) for _ in range(heads)]
    data = batches()
    with torch.no_grad():
        backbone(data[0][0])
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak counts anew
    cross_head_importance(backbone, data, old)
    return (_resident("VmHWM") - before) / (4 * sum(p.numel() for p in backbone.parameters()))


def _resident(field: str) -> int:
    """Bytes, from the kernel's account; `getrusage` would start from the peak of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def main() -> None:
    rows: list[tuple[Any, ...]] = []
    details: dict[str, Any] = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for heads in HEADS:
            rounds = 3 if heads <= 20 else 1
            pairs = [(textbooks(heads), ours(heads)) for _ in range(rounds)]
            book, mine = sorted(pairs, key=lambda pair: pair[0] / pair[1])[len(pairs) // 2]
            memory = extra_memory(heads) if threads == 1 else None
            details[f"{threads} threads, {heads} heads"] = {"textbook": book, "ours": mine, "copies": memory}
            shown = "" if memory is None else f"{memory:.1f}"
            rows.append((threads, heads, f"{book:.2f} s", f"{mine:.2f} s", f"{book / mine:.2f} x", shown))
    Report(
        "importance",
        ("threads", "old heads", "textbook", "softmask", "faster", "extra memory (copies of the backbone)"),
        rows,
        [
            f"The textbook form is timed on at most {TIMED_HEADS} heads and multiplied: it is linear.",
            "Extra memory is the peak over a forward pass, result and layer outputs included.",
        ],
    ).publish(details)


if __name__ == "__main__":
    main()
