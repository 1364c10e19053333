"""TensorBoard: event files in the run's own folder; `tensorboard --logdir STORE` shows all runs."""

from __future__ import annotations

from softmask.experiments.runs.store import StoredRun
from softmask.experiments.trackers.points import Point
from softmask.experiments.trackers.tracking import folder_of


class TensorBoardTracker:
    def __init__(self, run: StoredRun) -> None:
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


def make(run: StoredRun, remote: str | None) -> TensorBoardTracker:
    return TensorBoardTracker(run)
