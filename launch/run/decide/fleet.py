"""The engines of a run. They start where GPUs are free, also on nodes that join later.

The driver passes in the nodes, so this module needs no Ray. An engine that has had no work for a while ends, and frees
its GPUs. If there is work again, a new engine starts. An engine belongs to its node: if the node is lost, the engine
ends, and others do its work.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Literal, Protocol, TypeVar

from evaluator.core.errors import EngineError, ResurfaceError
from launch.run.decide.board import Board
from launch.run.decide.nodes import FreeGpus, Node, Place, missing_places, place_engines

_RETIRED = 2  # retired engines, after which their node may be at fault
# `other device`: all remaining work needs a type of device that no engine has.
Situation = Literal["goes on", "no engine works", "other device", "no room"]
SPARE = 1  # cores of the driver's node that engines on CPUs leave free


class Worker(Protocol):
    """The driver's thread for one engine; see `work/workers.py`."""

    number: int
    failure: BaseException | None
    retired: str | None

    @property
    def place(self) -> Place: ...
    @property
    def node_id(self) -> str: ...
    @property
    def serving(self) -> bool: ...
    def start(self) -> None: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...
    def lose_node(self) -> None: ...


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Fleet(Generic[AnyWorker]):
    """All engines of a run, past and present. Only the driver's thread uses it."""

    def __init__(
        self,
        nodes: Sequence[Node],
        board: Board,
        make: Callable[[int, Place], AnyWorker],
        *,
        tensor_parallel: int,
        wanted: int | None,
    ) -> None:
        """`make` returns the worker of an engine, not started. Raises InputError if `wanted` engines do not fit."""
        places = place_engines(nodes, tensor_parallel, wanted, spare=SPARE)
        self.workers: list[AnyWorker] = []
        self.free = FreeGpus(nodes)
        self._board = board
        self._make = make
        self._wanted = wanted
        self._first = places[0]
        self._nodes = tuple(nodes)
        self._numbers = itertools.count()  # no number is used twice, because logs and statistics are named by it
        self._waiting = deque(make(next(self._numbers), place) for place in places)
        self._holds: dict[int, str] = {}  # the node whose GPUs an engine has
        self._alone_since: float | None = None  # since when work has waited without an engine

    @property
    def on_gpus(self) -> bool:
        return self._first.gpus > 0

    @property
    def working(self) -> bool:
        """Whether an engine works, or may do so later."""
        return bool(self._waiting) or any(worker.is_alive() for worker in self.workers)

    def start(self, most: int | None = None) -> list[AnyWorker]:
        """Start the engines whose GPUs are free, at most `most`; returns them."""
        started: list[AnyWorker] = []
        for worker in list(self._waiting):
            if len(started) == most:
                break
            if self.free.take(worker.place.node_id, worker.place.gpus):
                self._holds[worker.number] = worker.place.node_id
                self._waiting.remove(worker)
                self.workers.append(worker)
                worker.start()
                started.append(worker)
        return started

    def start_first(self) -> None:
        """Start one engine for waiting work before prune jobs get GPUs, unless it would take all GPUs."""
        if not self.on_gpus or sum(node.gpus for node in self._nodes) <= self._first.gpus:
            return
        if self._board.has_work and not any(worker.serving for worker in self.workers):
            self._fill()
            self.start(1)

    def join(self, seconds: float) -> None:
        """Wait up to `seconds` for an engine to end."""
        alive = next((each for each in self.workers if each.is_alive()), None)
        time.sleep(seconds) if alive is None else alive.join(timeout=seconds)

    def follow(self, nodes: Sequence[Node]) -> list[Node]:
        """Adapt the engines to the current nodes; returns the new nodes."""
        before, there = {node.node_id for node in self._nodes}, {node.node_id for node in nodes}
        self._nodes = tuple(nodes)
        self.free.follow(nodes)
        for worker in self.workers:
            self._settle(worker, there)
        self._waiting = deque(each for each in self._waiting if each.place.node_id in there)
        if self._board.has_work:
            self._fill()
        return [node for node in nodes if node.node_id not in before]

    def _settle(self, worker: Worker, there: Collection[str]) -> None:
        """Inform a worker if its node is gone. Count its GPUs on the node where it really runs."""
        alive, gpus, held = worker.is_alive(), worker.place.gpus, self._holds.get(worker.number)
        if not alive:
            if worker.retired is None and held is not None:
                del self._holds[worker.number]
                self.free.give_back(held, gpus)
            return
        node_id = worker.node_id
        if held is not None and node_id != held and node_id in there:  # Ray had no room on the intended node
            self.free.move(held, node_id, gpus)
            self._holds[worker.number] = node_id
        if worker.serving and not {node_id, worker.place.node_id} <= set(there):
            worker.lose_node()

    def _fill(self) -> None:
        """Queue a worker for each missing engine."""
        serving = [each for each in self.workers if each.serving]
        standing = Counter(each.node_id for each in (*serving, *self._waiting))
        there = {node.node_id for node in self._nodes}
        ended = [each for each in self.workers if each.retired is not None]
        held = [self._holds.get(each.number, each.place.node_id) for each in ended]  # where Ray has put them
        retired = Counter(node_id for node_id in held if node_id in there)
        for node in self._spent(standing, retired):
            retired[node.node_id] = self._room(node)
        for place in missing_places(self._nodes, standing, retired, self._first, self._wanted, spare=SPARE):
            self._waiting.append(self._make(next(self._numbers), place))

    def _spent(self, standing: Counter[str], retired: Counter[str]) -> list[Node]:
        """Nodes that get no more engines: several were retired there, none is left, and another node has room.

        An engine that is left shows that its node works.
        """
        usable = [node for node in self._nodes if self.on_gpus and self._room(node) > retired[node.node_id]]
        spent = [node for node in usable if retired[node.node_id] >= _RETIRED and not standing[node.node_id]]
        return spent if len(spent) < len(usable) else []

    def _room(self, node: Node) -> int:
        """The number of engines that fit on a node's GPUs."""
        return node.gpus // self._first.gpus

    def check(self, placement_seconds: float, *, pruning: bool = False, short: bool = False) -> None:
        """Raises the error that ends the run: an engine's failure, or work without an engine for it.

        `pruning`: prune jobs run and will free their GPUs; `short`: some wait for a GPU.
        """
        for worker in self.workers:
            if worker.failure is not None:
                raise worker.failure
        if not self.working and self._board.has_work:
            self._fill()  # the last engine may have ended only now
        lacks = self._board.lacks
        situation = self._situation(lacks, pruning, short)
        if situation == "no engine works":
            why = [worker.retired for worker in self.workers if worker.retired is not None][-1]
            raise EngineError(f"no working engine is left: {why}; the same command resumes")
        if situation == "goes on":
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        waited = now - self._alone_since
        if waited <= placement_seconds:
            return
        if situation == "other device":
            raise ResurfaceError(
                f"resources.same_device: what is left needs {lacks!r}, as the records that are there, and no engine "
                f"has had that for {waited:.0f} s (resources.placement_seconds); finished work is kept, the "
                "same command resumes"
            )
        what = "an engine" if self._board.has_work else "a prune job"
        raise ResurfaceError(
            f"no node has had room for {what} for {waited:.0f} s (resources.placement_seconds); finished work "
            "is kept, the same command resumes"
        )

    def _situation(self, lacks: str | None, pruning: bool, short: bool) -> Situation:
        has_work = self._board.has_work
        if has_work and not self.working and any(worker.retired is not None for worker in self.workers):
            return "no engine works"
        if not (has_work or short):
            return "goes on"
        if lacks is not None:
            return "other device"
        alive = any(worker.is_alive() for worker in self.workers)
        return "goes on" if pruning or alive else "no room"


class TimeLimits:
    """The time limits for engines. Counts the engines that have a process. Thread-safe."""

    def __init__(self, *, placement_seconds: float, load_seconds: float, stall_seconds: float) -> None:
        """`placement_seconds`: limit for a time without any engine process. The others: see `HangWatch.least`."""
        self.load_seconds = load_seconds
        self.stall_seconds = stall_seconds
        self._seconds = placement_seconds
        self._engines: set[int] = set()
        self._lost = 0.0  # when an engine last lost its process
        self._lock = threading.Lock()

    def add(self, engine: int) -> None:
        with self._lock:
            self._engines.add(engine)

    def remove(self, engine: int) -> None:
        with self._lock:
            if engine in self._engines:
                self._engines.remove(engine)
                self._lost = time.monotonic()

    def check(self, gpus: int, since: float) -> None:
        """Raises ResurfaceError if for too long no engine, of `gpus` GPUs each, has had a process.

        `since`: the time.monotonic() at which the caller began to wait.
        """
        with self._lock:
            waited = time.monotonic() - max(since, self._lost)
            if self._engines or waited <= self._seconds:
                return
        needs = f"{gpus} free GPU{'s' if gpus > 1 else ''} on one node" if gpus else "a process"
        raise ResurfaceError(
            f"no engine has found {needs} for {waited:.0f} s (resources.placement_seconds): others hold them, or "
            "nodes are gone; finished work is kept, the same command resumes"
        )
