"""A Ray cluster of several nodes on this machine, each started in a directory of its
own."""

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

FIRST_GPU = 64


@contextlib.contextmanager
def gpus_by_name(count: int) -> Iterator[None]:
    """Within, Ray can be started with so many GPUs that it counts and hands out, and
    that no machine has."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(
            "CUDA_VISIBLE_DEVICES",
            ",".join(str(FIRST_GPU + number) for number in range(count)),
        )
        yield


class RayNodes:
    """The nodes of a running cluster, the head first."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, directory: Path, resources: Mapping[str, Any]) -> None:
        """Start a node in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        with contextlib.chdir(directory), gpus_by_name(resources.get("num_gpus", 0)):
            more = {"include_dashboard": False, "object_store_memory": 100 * 2**20}
            self._nodes.append(self._cluster.add_node(**more, **resources))

    def raylet(self, number: int) -> Any:
        """The process of a node that starts all its others."""
        return self._nodes[number].all_processes["raylet"][0].process

    def raylets(self) -> list[Any]:
        """Those of all nodes."""
        return [self.raylet(number) for number in range(len(self))]

    def __len__(self) -> int:
        return len(self._nodes)

    def kill(self, number: int) -> None:
        """Take a node away without a word: its raylet is killed, and its workers end
        with it."""
        self._cluster.remove_node(self._nodes.pop(number), allow_graceful=False)


@contextlib.contextmanager
def ray_cluster(nodes: Sequence[tuple[Path, Mapping[str, Any]]]) -> Iterator[RayNodes]:
    """A running cluster; `nodes`: directory and resources of each, the head first."""
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        running = RayNodes(cluster)
        for directory, resources in nodes:
            running.add(directory, resources)
        yield running
    finally:
        cluster.shutdown()


def in_own_process(function: Callable[..., Any], *given: Any) -> Any:
    """For a test that starts actors itself: Ray loses them in a process that had a
    local Ray before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *given).result()
