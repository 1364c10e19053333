"""A Ray cluster of several nodes, all of them on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@contextmanager
def loopback_cluster() -> Iterator[Any]:
    """A head with one processor, connected to; more nodes are added with `add_node(**NODE)`."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        head = {**NODE, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()
