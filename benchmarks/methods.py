"""The training step of every method at its tenth task, relative to NCL."""

from __future__ import annotations

from typing import Any

import torch

from softmask.learning.catalogue import METHODS

from .setup import at_last_task, problem
from .step import our_step
from .timing import Report, interleaved

# Joint training has no tenth task; its step is NCL's with ten times the batch.
LEFT_OUT = {"mtl"}


def main() -> None:
    torch.set_num_threads(1)
    rows: list[tuple[Any, ...]] = []
    details: dict[str, Any] = {}
    for name in METHODS.names():
        if name in LEFT_OUT:
            continue
        pair = {"ncl": our_step(at_last_task("ncl")), f"{name} ": our_step(at_last_task(name))}
        timings = {label.strip(): timing for label, timing in interleaved(pair, rounds=15).items()}
        expected = METHODS.load(name).cost(problem()).step
        details[name] = timings
        rows.append(
            (name, str(timings[name]), f"{timings[name].median / timings['ncl'].median:.2f} x", f"{expected} x")
        )
    Report("methods", ("method", "step", "against NCL", "expected by --dry-run"), rows, []).publish(details)


if __name__ == "__main__":
    main()
