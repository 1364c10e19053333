"""Work for the executors of the tests: functions that another process can import."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from softmask.errors import SoftmaskError


def call(job: tuple[Callable[[Any], Any], Any]) -> Any:
    """So that one pool, which takes seconds to start, can be asked for several things."""
    function, item = job
    return function(item)


def square(number: int) -> int:
    return number * number


def odd_ones_fail(number: int) -> int:
    if number == 1:
        raise SoftmaskError("1 is odd")
    if number == 3:
        raise ZeroDivisionError
    if number == 5:
        raise MemoryError("out of memory")
    return number * number


def warned(number: int) -> int:
    warnings.warn(f"{number} is a strange number", stacklevel=1)
    return number


def killed(_: object) -> None:
    """As the kernel does it to a process that takes too much."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(marker: Path) -> str:
    """The first attempt leaves a mark and dies."""
    if marker.exists():
        return "second attempt"
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def killed_once_on_a_gpu(marker: Path) -> str | None:
    """The second attempt tells its GPU, and lets `waits_for` end."""
    killed_once(marker)
    (marker.parent / "second").touch()
    return visible_gpu(0)


def waits_for(marker: Path) -> str | None:
    while not marker.exists():
        time.sleep(0.01)
    return visible_gpu(0)


def no_way_back(number: int) -> object:
    return lambda: number


def where(seconds: float) -> tuple[int, int, str | None]:
    time.sleep(seconds)
    return os.getpid(), torch.get_num_threads(), os.environ.get("OMP_WAIT_POLICY")


def mark_and_sleep(marker: Path) -> None:
    marker.write_text(str(os.getpid()))
    time.sleep(300)


def visible_gpu(_: int) -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")
