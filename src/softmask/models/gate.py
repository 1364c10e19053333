"""The gate of a model folder: a task that makes the model forget is not saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from softmask.core.gate import require_retained
from softmask.errors import SoftmaskError
from softmask.learning.fit import Fit
from softmask.learning.method import Method
from softmask.learning.task import Task
from softmask.models.description import ModelConfig
from softmask.models.folder import ModelFolder
from softmask.models.inspection import measure_drift
from softmask.models.learner import Watch


class FolderGate:
    """Measures the kept samples of all earlier tasks after every epoch, and once more on the final weights."""

    def __init__(
        self,
        share: float,
        folder: ModelFolder,
        config: ModelConfig,
        answer: Callable[[Method, Tensor, int], Tensor],
        watch: Watch | None,
    ) -> None:
        if missing := [task.name for task in config.tasks if not task.probe]:
            raise SoftmaskError(
                f"forgetting of {missing[0]!r} cannot be measured, since no samples of it were kept: learn with "
                "--probe N (probe=N), or give some now to ContinualModel.keep_probe"
            )
        self.share, self._folder, self._config, self._answer, self._watch = share, folder, config, answer, watch
        self.curves: dict[str, list[float]] = {}

    def __call__(self, task: Task, fit: Fit) -> None:
        """After an epoch."""
        self._measure(fit.learner)
        if self._watch is not None:
            self._watch(task, fit)

    def check(self, method: Method) -> None:
        """Raises `RetentionError` if a task keeps too little."""
        self._measure(method)
        require_retained(self.share, self.curves)

    def _measure(self, method: Method) -> None:
        if self._config.tasks:
            for drift in measure_drift(self._folder, self._config, partial(self._answer, method)):
                then, now = drift.curve
                self.curves.setdefault(drift.task, [then]).append(now)
