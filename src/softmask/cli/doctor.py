"""`softmask doctor`: checks the installation."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import tempfile
import time

import torch
from torch import nn

import softmask
from softmask.cli import options
from softmask.cli.printing import out
from softmask.core import SoftMask
from softmask.errors import SoftmaskError
from softmask.experiments.runs.config import make_config
from softmask.experiments.runs.run import run
from softmask.experiments.runs.store import Store
from softmask.experiments.sequences import SEQUENCES, load_sequence, sequence_facts
from softmask.learning.seeds import Seeds

PACKAGES = ("torch", "numpy", "safetensors", "pydantic", "scikit-learn", "pillow", "typer", "rich")


def doctor(data: options.Data = None) -> None:
    """Show installed packages, threads and the datasets that are found, and run a short self-check.

    Example: `softmask doctor --data DIR`
    """
    out.print(f"softmask {softmask.__version__}, Python {platform.python_version()}, {platform.platform()}")
    out.print("packages: " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES))
    waiting = os.environ.get("OMP_WAIT_POLICY", "not set: idle threads spin, which slows down a shared machine")
    out.print(f"cores {os.cpu_count()}, torch threads {torch.get_num_threads()}, OMP_WAIT_POLICY {waiting}")
    out.print(
        f"GPU: {'yes: --device cuda (not tested by us)' if torch.cuda.is_available() else 'none; all runs use the CPU'}"
    )
    for name in SEQUENCES.names():
        out.print(f"{name:6} {_found(name, data)}")
    start = time.monotonic()
    _check_importance()
    _check_run()
    out.print(
        f"self-check passed in {time.monotonic() - start:.1f} s: importance is exact, a resumed run is bit-identical"
    )


def _found(name: str, data: options.Data) -> str:
    facts = sequence_facts(name)
    if not facts.needs_data:
        return "built in"
    try:
        sequence = load_sequence(name, data, Seeds())
    except SoftmaskError as error:
        return f"not ready: {error}"
    return f"found, {sum(task.train.count for task in sequence.tasks):,} training images"


def _check_importance() -> None:
    """A minimal example, whose result was calculated by hand."""
    backbone, head, old = nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    with torch.no_grad():
        backbone.weight.copy_(torch.eye(2))
        backbone.bias.zero_()
        head.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        old.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    mask = SoftMask(backbone)
    mask.consolidate([(torch.tensor([[1.0, 1.0], [2.0, 2.0]]), torch.tensor([0, 1]))], head, [old])
    if abs(1 - mask.mean() - 0.330814) > 1e-5:
        raise SoftmaskError(f"self-check failed: the head factor is {1 - mask.mean():.6f}, not 0.330814")


class _Stop(Exception):
    """Interrupts the run of the self-check."""


def _check_run() -> None:
    """A small run, interrupted in its second task and continued, must end with the same weights as a whole one."""
    changes = {"width": 1 / 16, "epochs": 2}
    config = make_config("spg", "D-5", preset="short", tasks=2, changes=changes)
    epochs = 0

    def stop(*_: object) -> None:
        nonlocal epochs
        epochs += 1
        if epochs == 3:
            raise _Stop

    with tempfile.TemporaryDirectory() as folder:
        whole = run(config, Store(f"{folder}/whole"))
        with contextlib.suppress(_Stop):
            run(config, Store(f"{folder}/cut"), watch=stop)
        cut = run(config, Store(f"{folder}/cut"))
        if whole.events("finished")[0]["weights"] != cut.events("finished")[0]["weights"]:
            raise SoftmaskError("self-check failed: an interrupted run ended with other weights than a whole one")
