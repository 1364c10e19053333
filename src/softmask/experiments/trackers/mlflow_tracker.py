"""MLflow: a run in the experiment `softmask`, where MLFLOW_TRACKING_URI says, or else in the folder `mlruns`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from softmask.experiments.runs.store import StoredRun
from softmask.experiments.trackers.points import Point

EXPERIMENT = "softmask"
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


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`training.lr` and so on: parameters have no sections."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def make(run: StoredRun, remote: str | None) -> MlflowTracker:
    return MlflowTracker(run, remote)
