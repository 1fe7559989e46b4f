"""Decides the node and the resources of each process of a run, without Ray."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evaluator.core.errors import Document, InputError, Json, counted

_PER_CORE = 4  # engines at most: one that waits for its core only uses memory
_SPARE = 1  # cores of the driver's node that engines on CPUs leave free
_RETIRED = 2  # retired engines, after which their node may be at fault
_NAMED = 8  # limit of nodes in an error
# Options of a process without a GPU. Since Ray 2.60, such a process otherwise sees all
# GPUs of its node.
NO_GPUS: Document = {
    "num_gpus": 0,
    "runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    node_id: str  # Ray's
    name: str  # of the host
    cpus: int
    gpus: int
    driver: bool = False  # this process runs there


Nodes = Sequence[Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place of one engine: its node, GPUs and threads."""

    node_id: str
    gpus: int
    threads: int | None  # of an engine on a CPU; None: as the environment sets them
    remote: bool = False  # it computes nothing here: models behind URLs
    # Of a GPU that engines share (`sharing.py`). Ray gives it to the first of them.
    sharing: int = 1  # engines among which its memory is divided
    slot: int = 0  # its number among these
    # of those after the first: the first's number, and the GPU as CUDA names it
    first: int | None = None
    visible: str = ""

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpus or self.visible)

    @property
    def needs(self) -> str:
        """The resources that it waits for, in words."""
        if not self.gpus:
            return "a process"
        return f"{self.gpus} free GPU{'s' if self.gpus > 1 else ''} on one node"


def place_engines(
    nodes: Nodes, tensor_parallel: int, wanted: int | None
) -> tuple[Placement, ...]:
    """A place for each engine, on the nodes in turn; `wanted` None: as many engines
    as fit.

    An engine's GPUs are on one node. Without GPUs, each node has one engine by
    default, and more are allowed. The engines of a node share its cores. On the
    driver's node, one is left to the driver, Ray and pruning.

    Raises InputError if `wanted` engines do not fit, with the number that fits."""
    if not any(node.gpus for node in nodes):
        able = [node for node in nodes if node.cpus] or list(nodes)
        cores = sum(node.cpus for node in able)
        if wanted is not None and wanted > _PER_CORE * max(1, cores):
            there = f"{cores} core{'' if cores == 1 else 's'}"
            raise InputError(
                f"resources.engines: {wanted}: at most {_PER_CORE} for each core, and"
                f" there are {there}"
            )
        chosen = [able[number % len(able)] for number in range(wanted or len(able))]
        engines = Counter(node.node_id for node in chosen)
        places = []
        for node in chosen:
            cores = node.cpus - _SPARE * node.driver
            threads = max(1, cores // engines[node.node_id])
            places.append(Placement(node_id=node.node_id, gpus=0, threads=threads))
        return tuple(places)
    rooms = [node.gpus // tensor_parallel for node in nodes]
    fitting = sum(rooms)
    if not fitting:
        raise InputError(
            f"engine.tensor_parallel: {tensor_parallel}: no node has this many GPUs:"
            f" {_gpus_of(nodes)}"
        )
    if wanted is not None and wanted > fitting:
        each = "" if tensor_parallel == 1 else f" of tensor_parallel {tensor_parallel}"
        verb = "fits" if fitting == 1 else "fit"
        raise InputError(
            f"resources.engines: {wanted}{each}: {fitting} {verb}:"
            f" {_gpus_of(nodes, rooms)}"
        )
    places = []
    for turn in range(max(rooms)):
        for node, room in zip(nodes, rooms, strict=True):
            if turn < room:
                place = Placement(
                    node_id=node.node_id, gpus=tensor_parallel, threads=None
                )
                places.append(place)
    return tuple(places[:wanted])


def missing_places(
    nodes: Nodes,
    standing: Mapping[str, int],
    retired: Mapping[str, int],
    first: Placement,
    wanted: int | None,
) -> tuple[Placement, ...]:
    """Places for the missing engines, after nodes have joined or engines have ended.

    `standing` and `retired`: engines by node. A retired engine's resources are not
    used again. `first`: the place of one engine; all others are like it. Engines
    that no longer fit are left out."""
    if first.gpus:
        nodes = [node for node in nodes if node.gpus >= first.gpus]
    else:  # an engine on a GPU computes differently, so one run has one kind
        nodes = [replace(node, gpus=0) for node in nodes]
    if not nodes:
        return ()
    each = max(1, first.gpus)
    try:
        target = place_engines(nodes, each, None if first.gpus else wanted)
    except InputError:  # nodes are gone
        target = place_engines(nodes, each, None)
    left, missing = Counter(standing) + Counter(retired), []
    for place in target:
        if left[place.node_id]:
            left[place.node_id] -= 1
        else:
            missing.append(place)
    there = sum(standing.values())
    room = len(target) - there - sum(retired.values())
    if wanted is not None:
        room = min(room, wanted - there)
    return tuple(missing[: max(0, room)])


def suspected_nodes(
    rooms: Mapping[str, int], retired: Mapping[str, int], serving: Mapping[str, int]
) -> list[str]:
    """The nodes that get no engine although they have room: their engines were
    retired, and others have room. All three count engines by node."""
    usable = [node_id for node_id, room in rooms.items() if room > retired[node_id]]
    suspected = [
        node_id
        for node_id in usable
        if retired[node_id] >= _RETIRED and not serving[node_id]
    ]
    return suspected if len(suspected) < len(usable) else []


def _gpus_of(nodes: Nodes, rooms: Sequence[int] | None = None) -> str:
    """Each node's GPUs, and how many engines fit there, for an error message."""
    texts = [f"{counted(node.gpus, 'GPU')} on {node.name}" for node in nodes]
    if rooms is not None:
        texts = [f"{room} in {gpus}" for room, gpus in zip(rooms, texts, strict=True)]
    if len(texts) > _NAMED:
        texts[_NAMED:] = [f"{counted(len(texts) - _NAMED, 'node')} more"]
    return ", ".join(texts)


class FreeGpus:
    """The GPUs of each node that no prune task and no engine of this run has."""

    def __init__(self, nodes: Nodes) -> None:
        self._free: dict[str, int] = {}
        self.follow(nodes)

    def follow(self, nodes: Nodes) -> None:
        self._free = {
            node.node_id: self._free.get(node.node_id, node.gpus) for node in nodes
        }

    def take(self, node_id: str, count: int) -> bool:
        """Take `count` GPUs of a node, if they are free; returns whether they were."""
        if self._free.get(node_id, -1) < count:
            return False
        self._free[node_id] -= count
        return True

    def take_one(self, avoid: str | None = None) -> str | None:
        """Take a GPU of the node with the fewest free ones, `avoid` last; returns
        the node, None if no GPU is free."""
        free = [node_id for node_id, count in self._free.items() if count > 0]
        if not free:
            return None
        node_id = min(free, key=lambda each: (each == avoid, self._free[each]))
        self._free[node_id] -= 1
        return node_id

    def give_back(self, node_id: str, count: int = 1) -> None:
        """Free GPUs. A negative `count` takes some that may not be free."""
        if node_id in self._free:  # else its node is gone
            self._free[node_id] += count


def compress_options(*, gpu: bool) -> Json:
    """The arguments of `ray.remote` for a prune task.

    A process with a GPU ends with its task. An idle process would keep its CUDA context
    and torch's cache, and an engine refuses to start if less memory is free than it
    requests. Ray ends such a process itself, but only if `num_gpus` is given to
    `ray.remote`. So pass all of these there, not to `.options`.
    """
    own = {"num_gpus": 1} if gpu else NO_GPUS
    return {
        "num_cpus": 1,
        **own,
        "max_calls": 1 if gpu else 0,  # 0: any number
        # `CompressTasks` counts failures of all kinds, and chooses another node
        "max_retries": 0,
        "retry_exceptions": False,
    }
