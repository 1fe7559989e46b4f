"""A Ray cluster of several nodes on this machine, each started in a directory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def ray_nodes(nodes: Sequence[tuple[Path, Mapping[str, Any]]]) -> Iterator[str]:
    """The address of a running cluster; `nodes`: directory and resources of each, the head first.

    GPUs are names only: Ray counts them, and nothing looks for them.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for directory, resources in nodes:
            directory.mkdir(parents=True, exist_ok=True)
            with contextlib.chdir(directory):
                cluster.add_node(include_dashboard=False, object_store_memory=100 * 2**20, **resources)
        yield cluster.address
    finally:
        cluster.shutdown()
