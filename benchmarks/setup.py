"""The networks, methods and data that the benchmarks share: C-10 at full size, at its tenth task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from softmask.kernels.chain import needed_input
from softmask.learning.fit import Fitter
from softmask.learning.method import Method
from softmask.learning.networks import Backbone
from softmask.learning.registry import METHODS
from softmask.learning.scenario import NetworkConfig, Scenario
from softmask.learning.seeds import Seeds
from softmask.learning.task import Batches, Task
from softmask.learning.training import Training

from .textbook import DROP1, DROP2, TextbookSPG

IMAGE, CLASSES, TASKS, BATCH = (3, 32, 32), 10, 10, 64
LAST = TASKS - 1
A_STEP = Training(lr=1e-3, epochs=1)  # of one batch: enough to have learned a task, in the sense of a method's state


def scenario(tasks: int = TASKS) -> Scenario:
    return Scenario(IMAGE, (CLASSES,) * tasks, NetworkConfig(drop1=DROP1, drop2=DROP2), Seeds())


def random_images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, *IMAGE, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def task(index: int, count: int = 256) -> Task:
    x, y = random_images(count, seed=index)
    return Task((index,), f"generated {index}", CLASSES, Batches(x, y, BATCH), Batches(x[:BATCH], y[:BATCH], BATCH))


def some_importance(backbone: nn.Module) -> list[Tensor]:
    """As after several tasks: most parameters important, none at random alike."""
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(p.shape, generator=generator) for p in backbone.parameters()]


def at_last_task(name: str) -> Method:
    """A method that has learned nine tasks, with a step each, and begins the tenth."""
    torch.manual_seed(0)
    method = METHODS.load(name)(scenario())
    for index in range(LAST):
        earlier = task(index, BATCH)
        method.begin_task(earlier)
        method.learn(earlier, Fitter(method, earlier, A_STEP))
        method.eval()
        method.end_task(earlier)
    method.begin_task(task(LAST, BATCH))
    return method.train()


def textbook() -> TextbookSPG:
    torch.manual_seed(0)
    book = TextbookSPG(TASKS, CLASSES)
    book.importance = some_importance(book.backbone)
    return book


def training_flops(backbone: Backbone) -> int:
    """Floating-point operations of an image's forward and backward pass, after the crop, head left out.

    Each weighted layer multiplies three times: forward, gradient of its weight, gradient of its input; the first layer
    needs no gradient of its input.
    """
    rows, columns = needed_input(backbone.plain_layers(), *IMAGE[1:])
    total = 0
    for index, block in enumerate(backbone.blocks):
        layer = block.layer
        if isinstance(layer, nn.Conv2d):
            rows, columns = rows - layer.kernel_size[0] + 1, columns - layer.kernel_size[1] + 1
            operations = 2 * layer.weight.numel() * rows * columns
            rows, columns = rows // 2, columns // 2
        else:
            operations = 2 * layer.weight.numel()
        total += operations * (3 if index else 2)
    return total
