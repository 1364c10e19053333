"""Weights & Biases: a run of the project `softmask` (or WANDB_PROJECT), called by the run's id.

With WANDB_MODE=offline everything stays in the run's folder until `wandb sync`.
"""

from __future__ import annotations

import os

from softmask.experiments.runs.store import StoredRun
from softmask.experiments.trackers.points import Point
from softmask.experiments.trackers.tracking import folder_of

PROJECT = "softmask"


class WandbTracker:
    def __init__(self, run: StoredRun) -> None:
        import wandb

        self.remote = run.path.name
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.remote,
            name=self.remote,
            resume="allow",
            config=run.config.to_dict(),
            dir=str(folder_of(run, "wandb")),
            settings=wandb.Settings(silent=True),
        )
        for axis in ("epoch", "task"):
            self._run.define_metric(f"by {axis}")
            self._run.define_metric(f"{axis}/*", step_metric=f"by {axis}")

    def log(self, point: Point) -> None:
        named = {f"{point.axis}/{name}": value for name, value in point.values.items()}
        self._run.log({f"by {point.axis}": point.step, **named})

    def flush(self) -> None:
        """It has a process of its own that writes all the time."""

    def close(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish()


def make(run: StoredRun, remote: str | None) -> WandbTracker:
    return WandbTracker(run)
