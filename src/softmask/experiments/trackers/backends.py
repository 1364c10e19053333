"""The trackers themselves, each imported when it is used.

- MLflow: a run in the experiment `softmask`, where MLFLOW_TRACKING_URI says, or else in the folder `mlruns`.
- TensorBoard: event files in the run's own folder; `tensorboard --logdir STORE` shows all runs.
- Weights & Biases: a run of the project `softmask` (or WANDB_PROJECT), called by the run's id. With WANDB_MODE=offline
  everything stays in the run's folder until `wandb sync`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from softmask.experiments.runs.grid_file import flat
from softmask.experiments.runs.store import StoredRun
from softmask.experiments.trackers import Point, Tracker, folder_of

EXPERIMENT = PROJECT = "softmask"
STATUS = {"finished": "FINISHED", "failed": "FAILED"}


class MlflowTracker:
    def __init__(self, run: StoredRun, remote: str | None) -> None:
        from mlflow import MlflowClient

        address = os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").absolute().as_uri()
        # Newer releases want to be asked for a plain folder; it is all that mlflow-skinny can write by itself.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(address)
        if remote is None:
            self.remote = self._new_run(run)
        else:
            self.remote = remote
            self._client.update_run(remote, status="RUNNING")

    def _new_run(self, run: StoredRun) -> str:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
        made = self._client.create_run(experiment, run_name=run.path.name)
        parameters = [Param(name, str(value)) for name, value in flat(run.config.to_dict()).items()]
        self._client.log_batch(made.info.run_id, params=parameters)
        return str(made.info.run_id)

    def log(self, point: Point) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(f"{name} by {point.axis}", value, now, point.step) for name, value in point.values.items()]
        self._client.log_batch(self.remote, metrics=metrics)

    def flush(self) -> None:
        """Every batch is written when it is logged."""

    def close(self, status: str) -> None:
        self._client.set_terminated(self.remote, STATUS.get(status, "KILLED"))


class TensorBoardTracker:
    def __init__(self, run: StoredRun, remote: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.remote = "tensorboard"
        self._writer = SummaryWriter(str(folder_of(run, self.remote)))

    def log(self, point: Point) -> None:
        for name, value in point.values.items():
            self._writer.add_scalar(f"{name} by {point.axis}", value, point.step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()


class WandbTracker:
    def __init__(self, run: StoredRun, remote: str | None) -> None:
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


BACKENDS: dict[str, Callable[[StoredRun, str | None], Tracker]] = {
    "mlflow": MlflowTracker,
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
}
