"""Executors: in this process, in a pool of processes, on a Ray cluster. One interface for all."""

from __future__ import annotations

import os

from softmask.errors import UnknownName
from softmask.experiments.executors.interface import WORKER_DIED, Executor, ExecutorError, Outcome, SerialExecutor
from softmask.experiments.executors.processes import ProcessExecutor
from softmask.experiments.executors.ray import RayExecutor

NAMES = ("serial", "processes", "ray")

__all__ = [
    "NAMES",
    "WORKER_DIED",
    "Executor",
    "ExecutorError",
    "Outcome",
    "ProcessExecutor",
    "RayExecutor",
    "SerialExecutor",
    "cores",
    "make_executor",
]


def make_executor(
    name: str,
    *,
    jobs: int | None = None,
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    devices: tuple[str, ...] = (),
) -> Executor:
    """The executor of this name; arguments of other executors are ignored."""
    if name == "serial":
        return SerialExecutor()
    if name == "processes":
        return ProcessExecutor(jobs=jobs or len(devices) or cores(), devices=devices)
    if name == "ray":
        return RayExecutor(address=address, cpus=cpus, gpus=gpus)
    raise UnknownName("executor", name, NAMES)


def cores() -> int:
    """The cores that this process may use, if the system reports them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
