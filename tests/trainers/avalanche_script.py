"""Runs in a process of its own: Avalanche's real strategies beside a stand-in for torchvision.

torchvision does not load beside a CPU build of torch (`operator torchvision::nms does not exist`), and Avalanche
imports it everywhere, though none of it is used here. So empty classes stand in for it; nothing of Avalanche is
replaced.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from typing import Any

import torch
from torch import nn


class Stand(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None, "__call__": lambda self, x: x})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.split(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stand(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def main() -> None:
    warnings.simplefilter("ignore")
    sys.meta_path.insert(0, Finder())
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils.data import AvalancheDataset
    from avalanche.benchmarks.utils.data_attribute import DataAttribute
    from avalanche.training.supervised import Naive
    from torch.utils.data import TensorDataset

    from softmask import SoftMask
    from softmask.trainers.avalanche import SoftMaskPlugin
    from tests.trainers.loop import new_backbone, new_head, tasks

    def experience(batches: Any) -> Any:
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        labels = DataAttribute(y.tolist(), name="targets")
        task = DataAttribute([0] * len(y), name="targets_task_labels", use_in_getitem=True)
        return AvalancheDataset(TensorDataset(x, y), data_attributes=[labels, task])

    stream = benchmark_from_datasets(train=[experience(batches) for batches in tasks()]).train_stream
    model = nn.Sequential(new_backbone(), new_head(0))
    plugin = SoftMaskPlugin(SoftMask(model[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    strategy = Naive(
        model=model,
        optimizer=optimizer,
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=16,
        train_epochs=2,
        plugins=[plugin],
        evaluator=None,
    )
    means = []
    for each in stream:
        blocked = {n: (p.detach().clone(), plugin.mask.importance[n] == 1) for n, p in plugin.mask.parameters().items()}
        strategy.train(each, shuffle=False)
        for name, (before, ones) in blocked.items():
            assert torch.equal(plugin.mask.parameters()[name][ones], before[ones])
        assert not plugin.mask.attached
        means.append(plugin.mask.mean())
    assert 0 < means[0] < means[1] < means[2] < 1, means
    print("protected", means)


if __name__ == "__main__":
    main()
