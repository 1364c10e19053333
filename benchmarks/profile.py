"""Where the time of one training step goes: the part that matrix products take is a floor for the rest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from .setup import BATCH, LAST, at_last_task, random_images, textbook
from .step import our_step
from .timing import Report, interleaved

STEPS = 20
KINDS = {
    "convolutions": ("aten::mkldnn_convolution", "aten::convolution_backward"),
    "matrix products": ("aten::mm", "aten::addmm", "mkldnn::_linear_pointwise"),
    "random bits": ("aten::random_", "aten::bernoulli_"),
    "masked update": ("aten::addcmul_",),
}


def by_kind(step: Callable[[], None]) -> dict[str, float]:
    """Seconds of one step by what they are spent on."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            step()
    spent = dict.fromkeys((*KINDS, "elementwise and the rest"), 0.0)
    for event in profiler.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "elementwise and the rest")
        spent[kind] += event.self_cpu_time_total / 1e6 / STEPS
    return spent


def main() -> None:
    torch.set_num_threads(1)
    book, (x, y) = textbook(), random_images(BATCH)
    ours = our_step(at_last_task("spg"))
    timings = interleaved({"textbook": lambda: book.step(x, y, LAST), "ours": ours}, rounds=20)
    spent = by_kind(ours)
    products = spent["convolutions"] + spent["matrix products"]
    whole = sum(spent.values())
    rows = [(kind, f"{1e3 * seconds:.1f} ms", f"{100 * seconds / whole:.0f} %") for kind, seconds in spent.items()]
    reachable = timings["textbook"].median / (timings["ours"].median * products / whole)
    book_takes, ours_takes = (f"{1e3 * timings[name].median:.0f} ms" for name in ("textbook", "ours"))
    notes = [
        f"The textbook step takes {book_takes}, ours {ours_takes}. "
        f"If all but convolutions and matrix products were free, the ratio would be {reachable:.2f}."
    ]
    details = {"seconds": spent, "timings": timings, "ratio if only products cost": reachable}
    Report("profile", ("one SPG step, one thread", "time", "share"), rows, notes).publish(details)


if __name__ == "__main__":
    main()
