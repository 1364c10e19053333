"""What each protection adds to a loop: bytes per parameter at the peak of a step, and the time of a step.

Bytes are those of torch's allocator, as its profiler sees them, in the third step of a second task; batches of one
sample leave the memory to the parameters. They do not depend on what else the machine does. Steps are timed with larger
batches, all ways in turn within one process, in time of the processor, on one thread. The ratio to the bare loop is
that of the same round, of which the median over rounds is shown.

    make bench NAME=memory                                  # all of it
    python -m benchmarks.memory bytes                       # or times: one half; the other stays as it was
"""

from __future__ import annotations

import bisect
import gc
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile, record_function

from .memory_report import bare_loop, publish_tables, time_ratio
from .memory_ways import NETWORKS, OPTIMIZERS, WAYS, Loop, made
from .timing import RESULTS, Report, paired, summary

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SAMPLES = 8
OLD_HEADS = 3


def peaks(make: Callable[[], Loop]) -> tuple[dict[str, int], Loop]:
    """The most bytes that are allocated at once in a step and in `consolidate`, with all that `make` left."""
    gc.collect()  # what is freed inside would count as negative
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watched:
        loop = make()
        for _ in range(2):
            loop.step()
        for name, work in {"step": loop.step, **_consolidations(loop)}.items():
            with record_function(f"measured {name}"):
                work()
    events = watched.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    times, sizes = [when for when, _ in changes], list(itertools.accumulate(size for _, size in changes))
    found = {}
    for event in events:
        kind, _, name = event.name().partition(" ")
        if kind == "measured":
            first, last = (bisect.bisect(times, when) for when in (event.start_ns(), event.end_ns()))
            found[name] = max(sizes[first - 1 : last])
    return found, loop


def _consolidations(loop: Loop) -> dict[str, Callable[[], None]]:
    if loop.mask is None or not isinstance(loop.optimizer, AdamW):
        return {}
    return {"consolidate": loop.consolidate, "consolidate, old heads": partial(loop.consolidate, OLD_HEADS)}


def bytes_of_ways() -> list[dict[str, Any]]:
    """Per parameter of the model, and beyond the step of the bare loop."""
    found = []
    for network, optimizer, dtype in [
        *((network, optimizer, torch.float32) for network in NETWORKS for optimizer in OPTIMIZERS),
        ("transformer", "AdamW", torch.bfloat16),
    ]:
        bare: dict[bool, int] = {}
        for way in WAYS:
            most, loop = peaks(partial(made, network, optimizer, way, 1, dtype))
            count, is_lora = sum(p.numel() for p in loop.backbone.parameters()), way.startswith("LoRA")
            bare.setdefault(is_lora, most["step"])
            cell = {"network": network, "optimizer": optimizer, "dtype": str(dtype).partition(".")[2], "way": way}
            cell |= {"parameters": count, "bytes": most["step"] / count}
            cell["largest"] = max(p.nbytes for p in loop.backbone.parameters() if p.requires_grad) / count
            cell["beyond"] = {name: (size - bare[is_lora]) / count for name, size in most.items()}
            found.append(cell)
            print(cell, flush=True)
    return found


def times() -> dict[str, dict[str, dict[str, float]]]:
    """Of each way the seconds of a step, and the ratio to the bare loop of the same round."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for network in NETWORKS:
        for optimizer in OPTIMIZERS:
            loops = {way: made(network, optimizer, way, SAMPLES) for way in WAYS}
            for loop in loops.values():
                loop.step()
            steps = {way: loop.step for way, loop in loops.items()}
            seconds = paired(steps, rounds=ROUNDS, clock=time.process_time)
            found[f"{network} {optimizer}"] = {
                way: {**vars(summary(values)), "ratio": _ratio(values, seconds[bare_loop(way)])}
                for way, values in seconds.items()
            }
            print(network, optimizer, found[f"{network} {optimizer}"], flush=True)
    return found


def _ratio(values: Sequence[float], bare: Sequence[float]) -> float:
    return statistics.median(value / other for value, other in zip(values, bare, strict=True))


def main(arguments: Sequence[str] = ()) -> None:
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # it reads a layer's weights past its adapter
    wanted, file = arguments or ("bytes", "times"), RESULTS / "memory.json"
    known = json.loads(file.read_text()) if file.exists() else {"cells": [], "times": {}}
    cells = bytes_of_ways() if "bytes" in wanted else known["cells"]
    timings = times() if "times" in wanted else known["times"]
    publish(cells, timings)


def publish(cells: Sequence[dict[str, Any]], timings: dict[str, Any]) -> None:
    rows = []
    for cell in cells:
        ratio = time_ratio(cell, timings)
        rows.append(
            (
                *(cell[name] for name in ("network", "optimizer", "dtype", "way")),
                f"{cell['beyond']['step']:+.2f}",
                "" if ratio is None else f"{ratio:.2f} x",
            )
        )
    columns = ("network", "optimizer", "dtype", "way", "bytes per parameter beyond the bare loop", "time of a step")
    notes = [f"One thread. Times with {SAMPLES} images (AlexNet) and one sequence of 64 words (transformer)."]
    Report("memory", columns, rows, notes).publish({"cells": cells, "times": timings})
    publish_tables()


if __name__ == "__main__":
    main(sys.argv[1:])
