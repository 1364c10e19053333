"""Where work is done: in this process, in a pool of processes, on a Ray cluster. One interface for all."""

from softmask.executors.outcome import WORKER_DIED, Executor, ExecutorError, Outcome
from softmask.executors.processes import ProcessExecutor
from softmask.executors.serial import SerialExecutor

__all__ = ["WORKER_DIED", "Executor", "ExecutorError", "Outcome", "ProcessExecutor", "SerialExecutor"]
