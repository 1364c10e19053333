"""A method as it was after some of its tasks."""

from __future__ import annotations

from pathlib import Path

from softmask.errors import SoftmaskError
from softmask.experiments.runs.run import build, load
from softmask.experiments.runs.store import StoredRun
from softmask.learning.method import Method
from softmask.learning.task import TaskSequence


def load_from_checkpoint(run: StoredRun, learned: int, data: Path | None) -> tuple[Method, TaskSequence]:
    """The method after `learned` tasks, in eval mode, and its sequence. 0: the initial weights."""
    sequence = load(run.config, data)
    method = build(run.config, sequence)
    if learned:
        require_checkpoint(run, learned)
        method.load_state_dict(run.checkpoint(learned - 1))
    return method.eval(), sequence


def require_checkpoint(run: StoredRun, learned: int) -> None:
    if not (run.path / "checkpoints" / f"{learned - 1:03}.safetensors").exists():
        raise SoftmaskError(
            f"{run.path} has no checkpoint of task {learned}: run it with `--keep all` into another `--store`"
        )
