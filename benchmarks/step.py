"""One training step of the AlexNet: ours against a plain PyTorch loop and against textbook SPG."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softmask.learning.method import Method, Step

from .setup import BATCH, LAST, at_last_task, random_images, task, textbook, training_flops
from .timing import Report, Timing, interleaved

ROUNDS = 40


def our_step(method: Method, precision: str = "fp32") -> Callable[[], None]:
    """What `Fit.train_epoch` does with one batch."""
    x, y = random_images(BATCH)
    step = Step(task(LAST, BATCH), x, y, progress=0.5)
    optimizer = method.make_optimizer(1e-4)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = method.loss(step)
        loss.backward()
        method.after_backward(step)
        method.clip_gradients()
        optimizer.step()
        method.after_step(step)

    return run


def update_alone(method: Method) -> Callable[[], None]:
    """The optimizer's part of a step, with gradients that stay as they are."""
    optimizer = method.make_optimizer(1e-9)
    our_step(method)()
    return lambda: optimizer.step()


def sgemm_flops() -> float:
    """The best rate that torch reaches in a large float32 matrix product with the present threads."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    best = min(interleaved({"product": lambda: a @ b}, rounds=12).values(), key=lambda timing: timing.low)
    return 2 * 1536**3 / best.low


def native_bf16() -> bool:
    """Whether a bfloat16 product is quicker than a float32 one; elsewhere it is emulated, many times slower."""
    a, b = torch.randn(512, 512), torch.randn(512, 512)
    low_a, low_b = a.bfloat16(), b.bfloat16()
    timings = interleaved({"fp32": lambda: a @ b, "bf16": lambda: low_a @ low_b}, rounds=3, warmups=1)
    return timings["bf16"].median < timings["fp32"].median


def measure(threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    book = textbook()
    x, y = random_images(BATCH)
    spg, ncl = at_last_task("spg"), at_last_task("ncl")
    variants: dict[str, Callable[[], None]] = {
        "plain PyTorch loop": lambda: book.plain_step(x, y, LAST),
        "textbook SPG": lambda: book.step(x, y, LAST),
        "softmask NCL": our_step(ncl),
        "softmask SPG": our_step(spg),
    }
    if native_bf16():
        variants["softmask SPG, bf16"] = our_step(spg, "bf16")
    return {
        "timings": interleaved(variants, rounds=ROUNDS),
        "updates": interleaved({"NCL": update_alone(ncl), "SPG": update_alone(spg)}, rounds=200),
        "sgemm_flops": sgemm_flops(),
        "flops": training_flops(spg.backbone),
    }


def main() -> None:
    details: dict[str, Any] = {}
    rows: list[tuple[Any, ...]] = []
    for threads in (1, 2):
        measured = measure(threads)
        details[f"{threads} threads"] = measured
        timings: dict[str, Timing] = measured["timings"]
        reference, ncl = timings["textbook SPG"].median, timings["softmask NCL"].median
        updates: dict[str, Timing] = measured["updates"]
        masking = updates["SPG"].median - updates["NCL"].median
        for name, timing in timings.items():
            share = BATCH * measured["flops"] / timing.median / measured["sgemm_flops"]
            limit = f"{100 * share:.0f} %" if name.startswith("softmask") and "bf16" not in name else ""
            over = f"{100 * masking / ncl:+.1f} %" if name == "softmask SPG" else ""
            speed = f"{BATCH / timing.median:,.0f}"
            rows.append((threads, name, str(timing), speed, f"{reference / timing.median:.2f} x", limit, over))
    Report(
        "step",
        ("threads", "variant", "step of 64 images", "images/s", "against textbook", "of sgemm limit", "masking"),
        rows,
        [
            "The limit counts the FLOPs that remain after the crop at the best float32 matrix product of this machine.",
            "Masking: what SPG's update takes longer than NCL's, as a share of NCL's step; all else is the same.",
            *([] if native_bf16() else ["This processor has no native bfloat16: its step was left out."]),
        ],
    ).publish(details)


if __name__ == "__main__":
    main()
