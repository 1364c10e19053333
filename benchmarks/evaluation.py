"""Evaluation of 1,000 images: ours against a plain `no_grad` loop in batches of 64."""

from __future__ import annotations

from typing import Any

import torch

from softmask.learning.evaluation import accuracy
from softmask.learning.task import Batches

from .setup import LAST, at_last_task, random_images, textbook
from .timing import Report, interleaved

IMAGES = 1000


def main() -> None:
    rows: list[tuple[Any, ...]] = []
    details: dict[str, Any] = {}
    x, y = random_images(IMAGES)
    data = Batches(x, y, 64)
    book, ncl = textbook(), at_last_task("ncl")

    def plain() -> float:
        book.backbone.eval()
        right = 0
        with torch.no_grad():
            for images, labels in zip(x.split(64), y.split(64), strict=True):
                right += (book.heads[LAST](book.backbone(images)).argmax(1) == labels).sum().item()
        return right / IMAGES

    for threads in (1, 2):
        torch.set_num_threads(threads)
        timings = interleaved({"plain": plain, "softmask": lambda: accuracy(ncl, data, LAST)}, rounds=15)
        details[f"{threads} threads"] = timings
        plain_time, our_time = timings["plain"].median, timings["softmask"].median
        speeds = (f"{IMAGES / plain_time:,.0f}", f"{IMAGES / our_time:,.0f}")
        rows.append((threads, *speeds, f"{plain_time / our_time:.2f} x"))
    Report("evaluation", ("threads", "plain loop, images/s", "softmask, images/s", "faster"), rows, []).publish(details)


if __name__ == "__main__":
    main()
