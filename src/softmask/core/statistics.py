"""Running statistics of normalisation layers: no gradient reaches them, so a mask cannot protect them."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle


def unprotected_statistics(module: nn.Module) -> list[str]:
    """Names of the layers whose running statistics are still updated."""
    return [name or "itself" for name, layer in _statistical(module) if not _frozen(layer)]


def freeze_running_statistics(module: nn.Module) -> list[RemovableHandle]:
    """Freeze running statistics: layers normalise with the current ones from now on, even after a later `.train()`.

    Call it after the first task. Each handle's `remove()` unfreezes its layer. Resets torch.compile's caches, since
    code compiled before would still update the statistics.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    return [layer.register_forward_pre_hook(_stay_in_eval) for _, layer in _statistical(module) if not _frozen(layer)]


def average_over_processes(module: nn.Module) -> None:
    """The running statistics that are still updated, where each process of a group saw its own part of the data."""
    for _, layer in _statistical(module):
        for buffer in () if _frozen(layer) else layer.buffers():
            if buffer.is_floating_point():
                torch.distributed.all_reduce(buffer)
                buffer.div_(torch.distributed.get_world_size())


def _statistical(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (name, layer)
        for name, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats
    ]


def _frozen(layer: nn.Module) -> bool:
    return _stay_in_eval in layer._forward_pre_hooks.values()


def _stay_in_eval(layer: nn.Module, _: object) -> None:
    layer.eval()
