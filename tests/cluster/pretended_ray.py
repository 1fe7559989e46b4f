"""A Ray that is only pretended: what a driver asks of Ray, answered in its own process,
without any engine.

    ray = PretendedRay(nodes=13, gpus=8, answers=answers, pace=25.0, deaths=Deaths(...))
    with ray.installed():
        run_sweep(...)          # the real driver, its real threads, board and store
    ray.seconds                 # processor time of what is pretended, to be taken off
                                the process's

Nodes have GPUs, actors take them, and both die when `Deaths` says so: an actor in the
middle of a shard or a load, a node with all of its actors, and another node joins some
time later. The first node is the driver's, which stays.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.files import parquet_bytes
from evaluator.core.records import EngineStats
from evaluator.engine.base import LoadReport
from evaluator.store.records import failed_throughout
from launch.run.decide.assignments import (
    Assignment,
    EngineSetup,
    Shard,
    ShardResult,
    Shards,
    Where,
)
from launch.run.work import driver
from launch.run.work.actors import NewTask
from tests.cluster.answers import Answers

# "nodes": all but the driver's, at the same moment
_KINDS = ("actor", "node", "nodes", "hang", "away")
_AWAY_SECONDS = 2.0, 60.0
_NO_PROCESS = 2**23  # process ids begin here: Linux gives none that is so high


@dataclass(slots=True, kw_only=True)
class Deaths:
    """Which of the shards and loads that are begun, counted over all engines, end
    their engine or its node, or never end themselves."""

    actors: int = 0
    nodes: int = 0
    within: int = 0  # they are spread over the first so many
    seed: int = 0
    bursts: bool = False  # the seed alone decides what fails, several in a row
    _planned: dict[int, str] = field(default_factory=dict)
    _begun: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        if self.bursts:
            draw = random.Random(f"bursts of {self.seed}")
            for _ in range(draw.randint(1, 3)):
                first = draw.randrange(self.within)
                for number in range(draw.randint(1, 4)):
                    self._planned[first + number] = draw.choice(_KINDS)
            return
        count = self.actors + self.nodes
        chosen = random.Random(self.seed).sample(range(max(self.within, count)), count)
        self._planned = {
            at: "actor" if number < self.actors else "node"
            for number, at in enumerate(chosen)
        }

    def next(self) -> tuple[int, str | None]:
        """The number of what is begun now, and what dies with it."""
        number = next(self._begun)
        return number, self._planned.get(number)


@dataclass(eq=False, slots=True)
class _Node:
    node_id: str
    gpus: int
    free: int
    alive: bool = True


def _node_id(number: int) -> str:
    return f"{number:056x}"  # Ray's own look so, and it checks them


class _Actor:
    """An engine's process. It has a place as soon as `node` is set."""

    def __init__(self, ray: PretendedRay, gpus: int, node_id: str, pid: int) -> None:
        self.ray, self.gpus, self.wanted, self.pid = ray, gpus, node_id, pid
        self.node: _Node | None = None
        self.dead = False
        self.hung = False
        self.away_until = -math.inf  # nobody reaches it before
        self.waiting: deque[Shard] = deque()
        self.stream = 0  # its number
        self.tasks: dict[str, Assignment] = {}
        self.requests = self.steps = 0

    @property
    def counted(self) -> EngineStats:
        return EngineStats(
            requests=self.requests,
            steps=self.steps,
            busy_seconds=1.0,
            waiting_seconds=0.0,
            idle_seconds=0.0,
        )

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)


class _Method:
    """A method of an actor, as Ray's handles have it."""

    def __init__(self, actor: _Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def options(self, **_: Any) -> _Method:
        return self

    def remote(self, *arguments: Any) -> Any:
        actor = self._actor
        with actor.ray.off_the_clock():
            return getattr(_Calls, self._name)(actor, *arguments)


class _Pending:
    """An answer that comes `seconds` from now, unless the actor dies before; `make`
    makes it when it is fetched."""

    def __init__(
        self, actor: _Actor, make: Callable[[], Any], seconds: float = 0.0
    ) -> None:
        self.actor, self.make, self._at = actor, make, time.monotonic() + seconds

    @property
    def at(self) -> float:
        """When there is an answer or an error, as far as is known now."""
        if self.actor.dead:
            return -math.inf
        return math.inf if self.actor.hung else self._at

    def settled(self) -> bool:
        return self.at <= time.monotonic()


class _Place(_Pending):
    """The answer to where an actor is: there is none before it has a place."""

    @property
    def at(self) -> float:
        placed = self.actor.node is not None or self.actor.dead
        return -math.inf if placed else math.inf


class _Stream:
    """What an actor yields: a shard after another, as long as some wait."""

    def __init__(self, actor: _Actor, number: int) -> None:
        self.actor = actor
        actor.waiting, actor.stream = deque(), number
        self._next: _Pending | None = None
        self._over = False

    @property
    def at(self) -> float:
        if self._next is None and not self._over and not self.actor.dead:
            self._next = self._begin()
        return -math.inf if self._next is None else self._next.at

    def settled(self) -> bool:
        return self.at <= time.monotonic()

    def __next__(self) -> _Pending:
        if self._over:
            raise StopIteration
        assert self.settled(), "the driver waits first"
        if self.actor.dead:
            self._over = True
            return self._next or _Pending(self.actor, lambda: None)
        if self._next is None:
            raise StopIteration
        found, self._next = self._next, None
        return found

    def _begin(self) -> _Pending | None:
        actor = self.actor
        if not actor.waiting:
            self._over, actor.stream = True, 0
            return None
        shard = actor.waiting.popleft()
        actor.ray.begun(actor)
        pace = actor.ray.pace if actor.gpus else actor.ray.beside
        return _Pending(
            actor,
            lambda: self._result(shard),
            0.0 if pace is None else len(shard.questions) / pace,
        )

    def _result(self, shard: Shard) -> ShardResult:
        actor = self.actor
        actor.requests += len(shard.questions)
        actor.steps += 1
        made = actor.ray.made(actor.tasks[shard.task], shard)
        return replace(made, stats=actor.counted)


class _Calls:
    """What an actor answers: as `EngineActor`, with the actor in place of itself."""

    @staticmethod
    def where(actor: _Actor) -> _Pending:
        def place() -> Where:
            assert actor.node is not None
            return Where(
                node=actor.node.node_id,
                node_id=actor.node.node_id,
                device="pretended",
                pid=actor.pid,
                gpu=f"{actor.node.node_id}: 0",
            )

        return _Place(actor, place)

    @staticmethod
    def load(actor: _Actor, checkpoint: CheckpointInfo) -> _Pending:
        swapped, seconds = actor.steps > 0, actor.ray.load_seconds
        # an engine that dies before it ever served ends the trial of engines beside
        if actor.gpus or swapped:
            actor.ray.begun(actor)
        report = LoadReport(
            checkpoint=checkpoint.path, swapped=swapped, tensors=1, seconds=seconds
        )
        return _Pending(actor, lambda: report, actor.ray.load_seconds)

    @staticmethod
    def evaluate(actor: _Actor, number: int, *given: Any) -> _Stream:
        stream = _Stream(actor, number)
        _Calls.feed(actor, number, *given)
        return stream

    @staticmethod
    def feed(
        actor: _Actor, stream: int, shards: Shards, new: Sequence[NewTask], *_: Any
    ) -> None:
        if stream == actor.stream:
            actor.tasks |= {assignment.task: assignment for assignment, _ in new}
            actor.waiting += shards

    @staticmethod
    def stats(actor: _Actor) -> _Pending:
        return _Pending(actor, lambda: actor.counted)

    @staticmethod
    def pulse(actor: _Actor) -> _Pending:
        return _Pending(actor, lambda: (actor.steps, actor.requests))

    @staticmethod
    def read_ahead(actor: _Actor, _: Path) -> _Pending:
        return _Pending(actor, lambda: None)


def _unknown(_: Any) -> None: ...


class _Remote:
    """What `ray.remote(...)` makes of a class; of functions only that it was made is
    pretended."""

    def __init__(self, ray: PretendedRay, options: dict[str, Any]) -> None:
        self._ray, self._options = ray, options

    def __call__(self, _: Any) -> _Remote:
        return self

    def options(self, **_: Any) -> _Remote:
        return self

    def remote(self, setup: EngineSetup | int) -> _Actor | None:
        """Of a function: it kills the process of that number."""
        if isinstance(setup, int):
            return None  # the driver kills the actor too
        with self._ray.off_the_clock():
            return self._ray.start(
                self._options["num_gpus"], self._options["scheduling_strategy"].node_id
            )


class PretendedRay:
    """Ray's functions that the driver calls, of a cluster whose nodes have `gpus`
    GPUs each."""

    def __init__(
        self,
        *,
        nodes: int,
        gpus: int,
        answers: Answers,
        deaths: Deaths,
        pace: float | None = None,
        beside: float | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        """`pace`: items that an engine does in a second; None: as many as are
        fetched. `beside`: those of an engine beside another; None: as many."""
        self.pace, self.beside = pace, beside or pace
        self.answers, self.load_seconds = answers, load_seconds
        self.died: Counter[str] = Counter()
        # Of its own: each of a hundred threads would keep some memory of Arrow's, which
        # is not the driver's.
        self._maker = ThreadPoolExecutor(1, "pretended")
        self._deaths = deaths
        # so many shards and loads after a node has died
        self._rejoin = max(1, deaths.within // 20)
        self._joins: deque[int] = deque()
        self._numbers = itertools.count(nodes)
        self._pids = itertools.count(_NO_PROCESS)
        self._nodes = [_Node(_node_id(number), gpus, gpus) for number in range(nodes)]
        self._actors: dict[_Actor, None] = {}  # that live, the oldest first
        self._spent: dict[int, float] = {}  # by thread

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Within, module `ray` is this one."""
        names = (
            "init",
            "shutdown",
            "nodes",
            "get_runtime_context",
            "put",
            "get",
            "wait",
            "kill",
            "remote",
        )
        with contextlib.ExitStack() as stack:
            for name in names:
                stack.enter_context(mock.patch.object(ray, name, getattr(self, name)))
            stack.enter_context(
                mock.patch.dict(os.environ, {"RAY_ADDRESS": "pretended"})
            )
            # the memory of its GPUs is unknown
            stack.enter_context(mock.patch.object(driver, "room_of_gpus", _unknown))
            yield

    @contextlib.contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Within, the calling thread's processor time is not the driver's."""
        before = time.thread_time()
        try:
            yield
        finally:
            thread = threading.get_ident()
            self._spent[thread] = (
                self._spent.get(thread, 0.0) + time.thread_time() - before
            )

    @property
    def seconds(self) -> float:
        """Processor time of what is pretended."""
        return sum(list(self._spent.values()))

    # What the driver calls.

    def init(self, **_: Any) -> None: ...

    def shutdown(self) -> None: ...

    def get_runtime_context(self) -> Any:
        return mock.Mock(get_node_id=lambda: _node_id(0))

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": node.node_id, "NodeManagerHostname": node.node_id, "Alive": node.alive,
             "Resources": {"CPU": 16.0, "GPU": float(node.gpus)}}
            for node in self._nodes
        ]  # fmt: skip

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> _Remote:
        return _Remote(self, options)

    def wait(
        self, pending: Sequence[Any], *, num_returns: int = 1, timeout: float = math.inf
    ) -> tuple[list[Any], list[Any]]:
        with self.off_the_clock():
            until = time.monotonic() + timeout
            while True:
                came = [each for each in pending if each.settled()][:num_returns]
                now = time.monotonic()
                if came or now >= until or not pending:
                    return came, [each for each in pending if each not in came]
                soonest = min(each.at for each in pending)
                time.sleep(max(0.0, min(soonest, until) - now))

    def get(self, pending: _Pending, *, timeout: float | None = None) -> Any:
        with self.off_the_clock():
            if not self.wait([pending], timeout=timeout or math.inf)[0]:
                raise GetTimeoutError
            if pending.actor.dead:
                raise RayActorError
            if time.monotonic() < pending.actor.away_until:
                raise ActorUnavailableError("pretended", None)
            return pending.make()

    def kill(self, actor: _Actor) -> None:
        with self.off_the_clock():
            self._end(actor)

    # What the pretended parts call.

    def start(self, gpus: int, node_id: str) -> _Actor:
        actor = _Actor(self, gpus, node_id, next(self._pids))
        self._actors[actor] = None
        self._place()
        return actor

    def made(self, assignment: Assignment, shard: Shard) -> ShardResult:
        """What an engine's process sends."""

        def make() -> ShardResult:
            with self.off_the_clock():
                table = self.answers.table(assignment.origin, shard.questions)
                return ShardResult(
                    shard=shard,
                    part=parquet_bytes(table),
                    failed=failed_throughout(table),
                    stats=EngineStats(),
                )

        return self._maker.submit(make).result()

    def begun(self, actor: _Actor) -> None:
        """An actor begins a shard or a load, which may be its last."""
        number, dies = self._deaths.next()
        while self._joins and self._joins[0] <= number:
            self._joins.popleft()
            gpus = self._nodes[0].gpus
            self._nodes.append(_Node(_node_id(next(self._numbers)), gpus, gpus))
            self._place()
        if dies is None or actor.node is None:
            return
        if dies == "hang":
            self.died["hangs"] += 1
            actor.hung = True
        elif dies == "away":
            self.died["away"] += 1
            actor.away_until = time.monotonic() + _AWAY_SECONDS[number % 2]
        elif dies == "node" and actor.node is not self._nodes[0]:
            self._lose(actor.node, number)
        elif dies == "nodes":
            for node in [each for each in self._nodes[1:] if each.alive]:
                self._lose(node, number)
        else:
            self.died["actors"] += 1
            self._end(actor)

    def _lose(self, node: _Node, number: int) -> None:
        """A node with all its actors; another joins some time after `number`."""
        self.died["nodes"] += 1
        node.alive = False
        for each in [each for each in self._actors if each.node is node]:
            self.died["actors of nodes"] += 1
            self._end(each)
        self._joins.append(number + self._rejoin)

    def _end(self, actor: _Actor) -> None:
        if actor not in self._actors:
            return
        del self._actors[actor]
        actor.dead = True
        if actor.node is not None:
            actor.node.free += actor.gpus
        self._place()

    def _place(self) -> None:
        """Give actors without a place one: the node that they want, or any other
        that has room."""
        for actor in self._actors:
            if actor.node is None:
                able = [
                    each
                    for each in self._nodes
                    if each.alive and each.free >= actor.gpus
                ]
                if able:
                    actor.node = max(
                        able, key=lambda each: each.node_id == actor.wanted
                    )
                    actor.node.free -= actor.gpus
