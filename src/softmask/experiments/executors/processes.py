"""A pool of processes on this machine, one thread each, that survives the death of its workers.

A worker that is killed or runs out of memory is replaced, and its item tried again. No worker outlives the driver: each
watches a pipe that closes when the driver is gone, however it went.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from softmask.experiments.executors.interface import (
    WORKER_DIED,
    ExecutorError,
    Item,
    Outcome,
    Result,
    attempt,
    error_text,
)

# Read by the libraries when a worker starts. Threads that wait must not spin: there are as many workers as cores.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
}
SECONDS_TO_STOP = 5.0


@dataclass(frozen=True)
class ProcessExecutor:
    """Spawned, not forked: a worker shares nothing with the driver, so that threads and locks cannot get mixed up."""

    jobs: int = os.cpu_count() or 1
    attempts: int = 3
    """Number of attempts for an item whose worker dies."""
    devices: tuple[str, ...] = ()
    """GPUs by their numbers: each worker sees only one of them (CUDA_VISIBLE_DEVICES), in turn."""

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Outcome[Item, Result]]:
        waiting = deque(_Order(item, _packed(function, item)) for item in items)
        idle: list[_Worker] = []
        busy: dict[Connection, _Worker] = {}
        free = list(self.devices)  # a worker that died gives its GPU to the one that replaces it
        try:
            while waiting or busy:
                while waiting and len(busy) < self.jobs:
                    worker = idle.pop() if idle else self._worker(free)
                    worker.begin(waiting.popleft())
                    busy[worker.pipe] = worker
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    worker = busy[pipe]
                    order, answer = worker.order, worker.answer()
                    if isinstance(answer, _Note):
                        warnings.warn(answer.text, stacklevel=2)
                        continue
                    del busy[pipe]
                    if answer is not None:
                        idle.append(worker)
                        yield answer
                        continue
                    free += [worker.device] if worker.device is not None else []
                    if order.tries < self.attempts:
                        waiting.appendleft(order)
                    else:
                        yield Outcome(order.item, error=worker.death(order.tries), kind=WORKER_DIED)
        finally:
            _stop([*idle, *busy.values()])

    def _worker(self, free: list[str]) -> _Worker:
        if self.devices and not free:  # more jobs than GPUs: they are shared evenly
            free += self.devices
        return _Worker(free.pop(0) if free else None)


@dataclass
class _Order:
    """An item on its way to a worker."""

    item: Any
    content: bytes
    tries: int = 0


@dataclass(frozen=True)
class _Note:
    """A warning on its way to the driver, which alone knows whether another worker has said the same."""

    text: str


def _packed(function: Callable[..., Any], item: Any) -> bytes:
    try:
        return pickle.dumps((function, item))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ExecutorError(f"{function!r} or its item cannot go to another process: {error}") from None


class _Worker:
    """The driver's side of one process."""

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.pipe, theirs = multiprocessing.Pipe()
        with _environment(ONE_THREAD | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})):
            self.process: SpawnProcess = multiprocessing.get_context("spawn").Process(
                target=_work, args=(theirs,), name="softmask worker", daemon=True
            )
            self.process.start()
        theirs.close()  # otherwise its end would not be noticed
        self.order: _Order

    def begin(self, order: _Order) -> None:
        self.order = order
        order.tries += 1
        with suppress(OSError):  # it died while it was idle: reading its answer tells
            self.pipe.send_bytes(order.content)

    def answer(self) -> Outcome[Any, Any] | _Note | None:
        """None if the process died over it."""
        try:
            answer = pickle.loads(self.pipe.recv_bytes())  # from our own worker, through our own pipe
        except (EOFError, OSError):
            self.process.join()
            return None
        return answer if isinstance(answer, _Note) else Outcome(self.order.item, *answer)

    def death(self, tries: int) -> str:
        code = self.process.exitcode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        memory = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"the worker process {how}{memory}, in each of {tries} attempts"


def _stop(workers: list[_Worker]) -> None:
    """Politely first, so that leases are given back."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(SECONDS_TO_STOP)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """For processes that are started inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(pipe: Connection) -> None:
    """The life of a worker: one item after the other until the driver closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the driver decides
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_exit_with_driver, daemon=True).start()
    one_at_a_time = threading.Lock()  # other threads may warn, too

    def send(content: bytes) -> None:
        with one_at_a_time:
            pipe.send_bytes(content)

    warnings.showwarning = lambda message, *_, **__: send(pickle.dumps(_Note(str(message))))
    while True:
        try:
            content = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        send(_answer(content))


def _answer(content: bytes) -> bytes:
    try:
        function, item = pickle.loads(content)  # made by our own driver
        outcome = attempt(function, item)
        return pickle.dumps((outcome.result, outcome.error, outcome.kind))
    except Exception as error:  # what cannot be unpacked here, or packed again
        return pickle.dumps((None, error_text(error), type(error).__name__))


def _exit_with_driver() -> None:
    driver = multiprocessing.parent_process()
    assert driver is not None
    wait([driver.sentinel])
    os._exit(1)
