"""The products of the AlexNet's layers by either routine: which of them `softmask.kernels.layers` should prefer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from softmask.kernels import layers
from softmask.learning.networks import Block

from .setup import BATCH, random_images, scenario
from .timing import Report, interleaved

ROUNDS = 40


def routines(kind: str, block: Block, given: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The same product by torch's own routine and by oneDNN's."""

    def by(onednn: bool) -> Callable[[], Tensor]:
        def call() -> Tensor:
            with ExitStack() as patches:
                patches.enter_context(patch.object(layers, "prefers_onednn", lambda: onednn))
                patches.enter_context(torch.no_grad())
                return product()

        return call

    layer = block.layer
    with torch.no_grad():
        gradient = torch.randn_like(layer(given))
    if isinstance(layer, nn.Conv2d):
        sizes = layers.geometry(layer)
        product = lambda: layers.weight_gradient(gradient, given, layer.weight, *sizes)  # noqa: E731
    elif kind == "forward":
        product = lambda: layers.linear_forward(given, layer.weight, layer.bias)  # noqa: E731
    else:
        product = lambda: layers.linear_backward(gradient, layer.weight)  # noqa: E731
    return {"torch": by(False), "oneDNN": by(True)}


def measure(threads: int) -> list[tuple[Any, ...]]:
    torch.set_num_threads(threads)
    backbone, rows = scenario().backbone(), []
    x = backbone.prepare(random_images(BATCH)[0])
    for name, block in backbone.named_blocks.items():
        given = x if isinstance(block.layer, nn.Conv2d) else x.flatten(1)
        for kind in ("weight gradient",) if isinstance(block.layer, nn.Conv2d) else ("forward", "gradient below"):
            timings = interleaved(routines(kind, block, given), rounds=ROUNDS)
            ratio = timings["torch"].median / timings["oneDNN"].median
            rows.append((threads, name, kind, str(timings["torch"]), str(timings["oneDNN"]), f"{ratio:.2f} x"))
        with torch.no_grad():
            x = block(x)
    return rows


def main() -> None:
    capability, preferred = torch.backends.cpu.get_cpu_capability(), layers.prefers_onednn()
    rows = [row for threads in (1, 2) for row in measure(threads)]
    Report(
        "products",
        ("threads", "layer", "product", "torch's, or as one product", "oneDNN", "oneDNN quicker by"),
        rows,
        [f"Vectors: {capability}; softmask takes {'oneDNN' if preferred else 'torch'} here. Batches of {BATCH}."],
    ).publish({"capability": capability, "prefers_onednn": preferred})


if __name__ == "__main__":
    main()
