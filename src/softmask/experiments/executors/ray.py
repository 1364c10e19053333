"""A Ray cluster: each item is a task that Ray places, and places again when its node dies.

Results go through files that all nodes share, not through Ray: what comes back is only how an item ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from softmask.experiments.executors.interface import WORKER_DIED, ExecutorError, Item, Outcome, Result, attempt


@dataclass(frozen=True)
class RayExecutor:
    """The package must be installed on every node; nothing is sent there but names and items."""

    address: str | None = None
    """Of a cluster, or `auto` for the one that this machine belongs to; None starts one on this machine alone."""
    cpus: float = 1.0
    """Share of a node's processors that an item takes."""
    gpus: float = 0.0
    attempts: int = 4
    """Number of attempts for an item whose worker or node dies."""

    @property
    def jobs(self) -> int:
        """As many as fit on the cluster now; it may grow."""
        ray = connect(self.address)
        have = ray.cluster_resources()
        slots = [have.get("CPU", 0.0) / self.cpus] if self.cpus else []
        if self.gpus:
            slots.append(have.get("GPU", 0.0) / self.gpus)
        return max(1, int(min(slots))) if slots else 1

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Outcome[Item, Result]]:
        wanted = list(items)
        if not wanted:
            return
        ray = connect(self.address)
        self._require_room(ray)
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.attempts - 1)(attempt)
        pending = {task.remote(function, item): item for item in wanted}
        try:
            while pending:
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                yield _outcome(ray, ready, pending.pop(ready))
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)

    def _require_room(self, ray: Any) -> None:
        """Otherwise Ray would wait for ever for a node that has it."""
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            largest = max((node["Resources"].get(name, 0.0) for node in ray.nodes() if node["Alive"]), default=0.0)
            if wanted > largest:
                raise ExecutorError(f"no node of the Ray cluster has {wanted:g} {name}: the largest has {largest:g}")


def connect(address: str | None) -> Any:
    """Ray itself, connected; a connection that is there already is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    try:
        import ray
    except ImportError:
        raise ExecutorError("--executor ray needs Ray: pip install 'softmask[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).partition("\n")[0]
            raise ExecutorError(
                f"no Ray cluster at {address or 'this machine'}: {first}; start one with `ray start --head`"
            ) from None
    return ray


def _outcome(ray: Any, reference: Any, item: Any) -> Outcome[Any, Any]:
    try:
        outcome: Outcome[Any, Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # a function or a result that cannot travel
        first = str(error.cause or error).partition("\n")[0]
        return Outcome(item, error=first, kind=type(error.cause or error).__name__)
    except ray.exceptions.RayError as error:
        first = str(error).partition("\n")[0]
        return Outcome(item, error=f"its Ray worker died, in every attempt: {first}", kind=WORKER_DIED)
    return replace(outcome, item=item)
