"""A Ray cluster of several nodes on this machine, each started in a directory of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

FIRST_GPU = 64


@contextlib.contextmanager
def gpus_by_name(count: int) -> Iterator[None]:
    """Within, Ray can be started with so many GPUs that it counts and hands out, and that no machine has."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CUDA_VISIBLE_DEVICES", ",".join(str(FIRST_GPU + number) for number in range(count)))
        yield


@contextlib.contextmanager
def ray_nodes(nodes: Sequence[tuple[Path, Mapping[str, Any]]]) -> Iterator[str]:
    """The address of a running cluster; `nodes`: directory and resources of each, the head first."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        for directory, resources in nodes:
            directory.mkdir(parents=True, exist_ok=True)
            with contextlib.chdir(directory), gpus_by_name(resources.get("num_gpus", 0)):
                cluster.add_node(include_dashboard=False, object_store_memory=100 * 2**20, **resources)
        yield cluster.address
    finally:
        cluster.shutdown()
