"""The training step of every method at its tenth task, relative to NCL."""

from __future__ import annotations

from typing import Any

import torch

from softmask.learning.registry import METHODS

from .setup import at_last_task, scenario
from .step import our_step
from .timing import Report, interleaved

# Joint training has no tenth task; its step is NCL's with ten times the batch.
LEFT_OUT = {"mtl"}
# The expected cost of a step before anything was measured, from the methods' arithmetic.
EXPECTED = {
    "ncl": "1",
    "one": "1",
    "ewc": "1.01 to 1.05",
    "ewc-gi": "1.01 to 1.05",
    "si": "1.02 to 1.08",
    "ucl": "1.1 to 1.3, more on a CPU",
    "a-gem": "5",
    "tag": "1 and what ten tasks' moments take to read",
    **dict.fromkeys(("spg", "spg-no-chi", "spg-no-smh", "spg-hard", "spg-fi"), "1.01"),
    "hat": "1.05 to 1.15",
    "wsn": "1.5 to 3",
    "supsup": "1.5 to 3",
    "pgn": "t narrow columns",
    "pathnet": "0.3 to 1",
    "cat": "1 and 1 more for each similar task",
}


def main() -> None:
    torch.set_num_threads(1)
    rows: list[tuple[Any, ...]] = []
    details: dict[str, Any] = {}
    for name in METHODS.names():
        if name in LEFT_OUT:
            continue
        pair = {"ncl": our_step(at_last_task("ncl")), f"{name} ": our_step(at_last_task(name))}
        timings = {label.strip(): timing for label, timing in interleaved(pair, rounds=15).items()}
        told = METHODS.load(name).cost(scenario()).step
        details[name] = timings
        ratio = timings[name].median / timings["ncl"].median
        rows.append((name, str(timings[name]), f"{ratio:.2f} x", f"{told:.2f} x", EXPECTED.get(name, "-")))
    columns = ("method", "step", "against NCL", "mean over ten tasks, as --dry-run has it", "expected beforehand")
    Report("methods", columns, rows, []).publish(details)


if __name__ == "__main__":
    main()
