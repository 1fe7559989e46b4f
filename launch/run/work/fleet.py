"""The engines of a run. They start where GPUs are free, also on nodes that join
later.

An engine is a generator: it yields what it waits for (`Wait`), and goes on when that
has come. One thread serves all of them (`workers.turn`).

The driver passes in the nodes, so this module needs no Ray. An engine that has had
no work for a while ends, and frees its GPUs. If there is work again, a new engine
starts. An engine belongs to its node: if the node is lost, the engine ends, and
others do its work."""

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from evaluator.core.errors import EngineError, ResurfaceError
from launch.run.decide.assignments import Where
from launch.run.decide.board import Board
from launch.run.decide.nodes import (
    FreeGpus,
    Node,
    Nodes,
    Placement,
    missing_places,
    place_engines,
    suspected_nodes,
)


class Wait(NamedTuple):
    """What an engine waits for: an answer, or the time."""

    until: float
    answer: Any = None
    work: bool = False  # a change of the board ends it too


Result = TypeVar("Result")
# each yield returns whether the answer has come
Steps = Generator[Wait, bool, Result]


class Worker:
    """The driver's side of one engine; `work/workers.py` is the real one."""

    def __init__(self, number: int, place: Placement, board: Board) -> None:
        self.number = number
        self.place = place
        self.board = board
        if place.remote:
            board.remote_engines.add(number)
        self.failure: BaseException | None = None  # the error that stopped it
        self.retired: str | None = None  # why its engine receives no more work
        self.dismissed = False  # it ends after its current work
        self.refused = ""  # why an engine beside another one did not start
        self.loaded = False  # its engine has served a checkpoint
        self.gone = False  # its node was lost
        # None: its process, if it exists, has no place yet
        self.where: Where | None = None
        self.waits = Wait(math.inf)
        self._steps: Steps[None] | None = None  # None: not started, or ended
        self._seen = 0  # changes of the board

    def run(self) -> Steps[None]:
        raise NotImplementedError

    def start(self) -> None:
        self._steps = self.run()
        self.go_on(None)

    def is_alive(self) -> bool:
        return self._steps is not None

    def is_due(self, now: float) -> bool:
        """Whether it goes on without its answer."""
        changed = self.waits.work and self.board.changes != self._seen
        return changed or self.waits.until <= now

    def go_on(self, came: bool | None) -> None:
        """Let it work until it waits again. `came`: whether its answer did."""
        assert self._steps is not None
        self._seen = self.board.changes
        try:
            self.waits = self._steps.send(came)  # type: ignore[arg-type]
        except StopIteration:
            self._steps = None

    def close(self) -> None:
        """End it here. Its process ends with the run's Ray."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    @property
    def node_id(self) -> str:
        """The node of its process, or its expected node."""
        where = self.where
        return self.place.node_id if where is None else where.node_id

    @property
    def serving(self) -> bool:
        """Whether it takes work, now or as soon as it has a process."""
        ends = self.gone or self.dismissed or self.retired is not None
        return self.is_alive() and not ends

    def dismiss(self) -> None:
        self.dismissed = True
        self.board.leave(self.number, for_good=True)


AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Fleet(Generic[AnyWorker]):
    """All engines of a run, past and present. Only the driver's thread uses it."""

    def __init__(
        self,
        nodes: Nodes,
        board: Board,
        make: Callable[[int, Placement], AnyWorker],
        *,
        tensor_parallel: int,
        wanted: int | None,
        remote: int = 0,
    ) -> None:
        """`make` returns the worker of an engine, not started. `remote`: engines of
        models behind URLs, which come on top. Raises InputError if `wanted` engines do
        not fit."""
        places = place_engines(nodes, tensor_parallel, wanted)
        self.workers: list[AnyWorker] = []
        self.free = FreeGpus(nodes)
        self._board = board
        self._make = make
        self._wanted = wanted
        self._first = places[0]
        self._nodes = tuple(nodes)
        # no number is used twice, because logs and statistics are named by it
        self._numbers = itertools.count()
        here = Placement(node_id=nodes[0].node_id, gpus=0, threads=1, remote=True)
        places = (*places, *(remote * [here]))
        self._waiting = deque(make(next(self._numbers), place) for place in places)
        self._holds: dict[int, str] = {}  # the node whose GPUs an engine has
        # since when work has waited without an engine
        self._alone_since: float | None = None
        self.on_gpus = self._first.gpus > 0

    @property
    def working(self) -> bool:
        """Whether an engine works, or may do so later."""
        return bool(self._waiting) or any(worker.is_alive() for worker in self.workers)

    def start(self, *, one: bool = False) -> None:
        """Start the engines whose GPUs are free, or only `one` of them."""
        for worker in list(self._waiting):
            if self.free.take(worker.place.node_id, worker.place.gpus):
                self._holds[worker.number] = worker.place.node_id
                self._waiting.remove(worker)
                self.workers.append(worker)
                worker.start()
                if one:
                    return
        self._board.sharing = sum(worker.serving for worker in self.workers)

    def start_first(self) -> None:
        """Start one engine for waiting work before prune jobs get GPUs, unless it
        would take all GPUs."""
        if (
            not self.on_gpus
            or sum(node.gpus for node in self._nodes) <= self._first.gpus
        ):
            return
        if self._board.has_work and not any(worker.serving for worker in self.workers):
            self._fill()
            self.start(one=True)

    def sharing(self, first: AnyWorker) -> list[AnyWorker]:
        """The engines of a GPU, its first one before those that started beside it."""
        beside = [each for each in self.workers if each.place.first == first.number]
        return [first, *(each for each in beside if each.serving)]

    def first(self) -> AnyWorker | None:
        """The first engine of a GPU that serves a checkpoint."""
        for worker in self.workers:
            if worker.place.gpus and worker.serving and worker.loaded:
                return worker
        return None

    def share(self, engines: int) -> None:
        """Give each GPU so many engines. One at a time starts, beside the first; the
        newest end first, and all of them with the first."""
        guests: dict[int | None, list[AnyWorker]] = {}  # by the first of their GPU
        for worker in self.workers:
            if worker.place.visible and worker.serving:
                guests.setdefault(worker.place.first, []).append(worker)
        if engines == 1 and not guests:
            return
        starting = not all(each.loaded for some in guests.values() for each in some)
        firsts = [each for each in self.workers if each.place.gpus]
        firsts.sort(key=lambda each: len(guests.get(each.number, ())))
        for first in firsts:
            beside = guests.get(first.number, [])
            kept = engines - 1 if first.serving else 0
            for worker in beside[kept:]:
                worker.dismiss()
            ready = first.serving and first.loaded and first.where is not None
            if starting or not ready or len(beside) >= kept or not self._board.spare:
                continue
            assert first.where is not None
            slots = {each.place.slot for each in beside}
            place = replace(
                first.place,
                node_id=first.node_id,
                gpus=0,
                slot=min({*range(1, engines)} - slots),
                first=first.number,
                visible=first.where.visible,
            )
            worker = self._make(next(self._numbers), place)
            self.workers.append(worker)
            worker.start()
            starting = True

    def follow(self, nodes: Nodes) -> list[Node]:
        """Adapt the engines to the current nodes; returns the new nodes."""
        before = {node.node_id for node in self._nodes}
        there = {node.node_id for node in nodes}
        self._nodes = tuple(nodes)
        self.free.follow(nodes)
        for worker in self.workers:
            gpus, node_id = worker.place.gpus, worker.node_id
            held = self._holds.get(worker.number)
            if not worker.is_alive():
                beside = [
                    each for each in self.workers if each.place.first == worker.number
                ]
                alone = not any(each.is_alive() for each in beside)
                if worker.retired is None and held is not None and alone:
                    del self._holds[worker.number]
                    self.free.give_back(held, gpus)
                continue
            # Ray had no room on the intended node
            if held is not None and node_id != held and node_id in there:
                self.free.give_back(held, gpus)
                self.free.give_back(node_id, -gpus)
                self._holds[worker.number] = node_id
            if worker.serving and not {node_id, worker.place.node_id} <= there:
                # it ends after its current work, if Ray has put it on another node
                worker.gone = True
                worker.dismiss()
        self._waiting = deque(
            each for each in self._waiting if each.place.node_id in there
        )
        if self._board.has_work:
            self._fill()
        return [node for node in nodes if node.node_id not in before]

    def _fill(self) -> None:
        """Queue a worker for each missing engine, but not where several were retired
        and another node has room."""
        local = [
            each
            for each in self.workers
            if not (each.place.remote or each.place.visible)
        ]
        serving = [each for each in local if each.serving]
        waiting = [each for each in self._waiting if not each.place.remote]
        standing = Counter(each.node_id for each in (*serving, *waiting))
        there = {node.node_id for node in self._nodes}
        ended = [each for each in local if each.retired is not None]
        # where Ray has put them
        held = [self._holds.get(each.number, each.place.node_id) for each in ended]
        retired = Counter(node_id for node_id in held if node_id in there)
        rooms = (
            {node.node_id: node.gpus // self._first.gpus for node in self._nodes}
            if self.on_gpus
            else {}
        )
        for node_id in suspected_nodes(rooms, retired, standing):
            retired[node_id] = rooms[node_id]
        for place in missing_places(
            self._nodes, standing, retired, self._first, self._wanted
        ):
            self._waiting.append(self._make(next(self._numbers), place))

    def check(
        self, placement_seconds: float, *, pruning: bool = False, short: bool = False
    ) -> None:
        """Raises the error that ends the run: an engine's, or work without an engine
        for `placement_seconds`."""
        for worker in self.workers:
            if worker.failure is not None:
                raise worker.failure
        if not self.working and self._board.has_work:
            self._fill()  # the last engine may have ended only now
        has_work = self._board.has_work
        retired = [each.retired for each in self.workers if each.retired is not None]
        if has_work and retired and not self.working:
            raise EngineError(
                f"no working engine is left: {retired[-1]}; the same command resumes"
            )
        alive = [worker for worker in self.workers if worker.is_alive()]
        # what the work waits for, without which it cannot go on
        missing, why = "", ""
        if alive and not self._board.over and not any(worker.where for worker in alive):
            missing = f"no engine has found {self._first.needs}"
            why = ": others hold them, or nodes are gone"
        elif (has_work or short) and not (pruning or alive):
            what = "an engine" if has_work else "a prune job"
            missing = f"no node has had room for {what}"
        if not missing:
            self._alone_since = None
            return
        now = time.monotonic()
        self._alone_since = self._alone_since or now
        waited = now - self._alone_since
        if waited > placement_seconds:
            raise ResurfaceError(
                f"{missing} for {waited:.0f} s (resources.placement_seconds){why};"
                " finished work is kept, the same command resumes"
            )
