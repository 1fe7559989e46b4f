"""What the processes of a run need of a cluster's nodes, and which node each gets: decided here, without Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evaluator.core.errors import InputError

_PER_CORE = 4  # engines at most: one that waits for its core only takes memory
_NAMED = 8  # nodes that an error names at most
# Options of a process that asks for no GPU. Since 2.60 Ray leaves it all GPUs of its node.
NO_GPUS: Mapping[str, Any] = {"num_gpus": 0, "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster, as Ray counts it."""

    node_id: str  # Ray's
    name: str  # of the host
    cpus: int
    gpus: int
    driver: bool = False  # this process runs there


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one engine is to run, and with what."""

    node_id: str
    gpus: int
    threads: int | None  # that an engine on a CPU computes with; None: as the environment says


def place_engines(nodes: Sequence[Node], tensor_parallel: int, wanted: int | None, *, spare: int) -> tuple[Place, ...]:
    """A place for each engine, the nodes in turn; `wanted` None: as many engines as fit.

    An engine's GPUs are on one node. Without GPUs there is no such limit: by default each node has one engine, and the
    engines of a node share its cores, of which `spare` are left to the driver, to Ray and to pruning on the driver's.
    Raises InputError for more engines than fit, saying how many fit where.
    """
    if not any(node.gpus for node in nodes):
        able = [node for node in nodes if node.cpus] or list(nodes)
        cores = sum(node.cpus for node in able)
        if wanted is not None and wanted > _PER_CORE * max(1, cores):
            there = f"{cores} core{'' if cores == 1 else 's'}"
            raise InputError(f"resources.engines: {wanted}: at most {_PER_CORE} for each core, and there are {there}")
        chosen = [able[number % len(able)] for number in range(wanted or len(able))]
        engines = Counter(node.node_id for node in chosen)
        return tuple(
            Place(
                node_id=node.node_id,
                gpus=0,
                threads=max(1, (node.cpus - spare * node.driver) // engines[node.node_id]),
            )
            for node in chosen
        )
    rooms = [node.gpus // tensor_parallel for node in nodes]
    fitting = sum(rooms)
    if not fitting:
        raise InputError(f"engine.tensor_parallel: {tensor_parallel}: no node has this many GPUs: {_gpus_of(nodes)}")
    if wanted is not None and wanted > fitting:
        each = "" if tensor_parallel == 1 else f" of tensor_parallel {tensor_parallel}"
        verb = "fits" if fitting == 1 else "fit"
        raise InputError(f"resources.engines: {wanted}{each}: {fitting} {verb}: {_gpus_of(nodes, rooms)}")
    turns = [node for turn in range(max(rooms)) for node, room in zip(nodes, rooms, strict=True) if turn < room]
    return tuple(Place(node_id=node.node_id, gpus=tensor_parallel, threads=None) for node in turns[:wanted])


def missing_places(
    nodes: Sequence[Node],
    standing: Mapping[str, int],
    retired: Mapping[str, int],
    first: Place,
    wanted: int | None,
    *,
    spare: int,
) -> tuple[Place, ...]:
    """Places for the engines that are missing on the nodes as they are now: where nodes have come, or engines gone.

    `standing` and `retired`: engines by node; what a retired one had is not used again. `first`: the place of one,
    which all are like. What does not fit any more is done without.
    """
    if first.gpus:
        nodes = [node for node in nodes if node.gpus >= first.gpus]
    else:  # an engine on a GPU computes otherwise: one run has one kind
        nodes = [replace(node, gpus=0) for node in nodes]
    if not nodes:
        return ()
    try:
        target = place_engines(nodes, max(1, first.gpus), None if first.gpus else wanted, spare=spare)
    except InputError:  # nodes are gone
        target = place_engines(nodes, max(1, first.gpus), None, spare=spare)
    left, missing = Counter(standing) + Counter(retired), []
    for place in target:
        if left[place.node_id]:
            left[place.node_id] -= 1
        else:
            missing.append(place)
    there = sum(standing.values())
    room = len(target) - there - sum(retired.values())
    return tuple(missing[: max(0, room if wanted is None else min(room, wanted - there))])


def _gpus_of(nodes: Sequence[Node], rooms: Sequence[int] | None = None) -> str:
    """The GPUs of each node, and how many engines have room there, for an error message."""
    told = [f"{node.gpus} GPU{'' if node.gpus == 1 else 's'} on {node.name}" for node in nodes]
    if rooms is not None:
        told = [f"{room} in {gpus}" for room, gpus in zip(rooms, told, strict=True)]
    more = [] if len(told) <= _NAMED else [f"{len(told) - _NAMED} nodes more"]
    return ", ".join([*told[:_NAMED], *more])


class FreeGpus:
    """The GPUs of each node that neither a prune task nor an engine of this run has been given."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._free = {node.node_id: node.gpus for node in nodes}

    def follow(self, nodes: Sequence[Node]) -> None:
        """Nodes have come or gone."""
        self._free = {node.node_id: self._free.get(node.node_id, node.gpus) for node in nodes}

    def take(self, node_id: str, count: int) -> bool:
        """Whether `count` GPUs of a node were free; they are not any more."""
        if self._free.get(node_id, -1) < count:
            return False
        self._free[node_id] -= count
        return True

    def take_one(self, avoid: str | None = None) -> str | None:
        """The node that a GPU was taken of: the one with the fewest, so that whole groups stay for engines; `avoid`
        only where no other has any."""
        free = [node_id for node_id, count in self._free.items() if count > 0]
        if not free:
            return None
        node_id = min(free, key=lambda each: (each == avoid, self._free[each]))
        self._free[node_id] -= 1
        return node_id

    def move(self, source: str, target: str, count: int) -> None:
        """GPUs were found on another node than the one that they were taken of; fewer than none may be free there."""
        self.give_back(source, count)
        self._free[target] -= count

    def give_back(self, node_id: str, count: int = 1) -> None:
        if node_id in self._free:  # else its node is gone
            self._free[node_id] += count


def prune_options(*, gpu: bool) -> dict[str, Any]:
    """The arguments of `ray.remote` for a prune task.

    A process that had a GPU ends with its task: idle, it would keep its CUDA context and torch's cache, and an engine
    refuses to start where less memory is free than it asks for. Ray would see to that by itself, but looks at
    `num_gpus` in `ray.remote` only: all of this must be given there, not to `.options`.
    """
    return {
        "num_cpus": 1,
        **({"num_gpus": 1} if gpu else NO_GPUS),
        "max_calls": 1 if gpu else 0,  # 0: any number
        "max_retries": 0,  # `PruneTasks` counts failures of all kinds, and chooses another node
        "retry_exceptions": False,
    }
