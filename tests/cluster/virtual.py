"""A virtual clock, and threads of which one runs at a time: one seed, one execution.

    world = VirtualWorld(seed=17)
    with world.installed():
        ...                 # the driver's modules see this clock and these threads

Each thread is a real one that waits for its turn. It gives the turn away wherever it
could block: at a lock, an event, a sleep. The seed chooses who is
next. If nobody can go on, the clock jumps to the next timeout; if there is none either,
the run is stuck, which is an error. `time.time` jumps by an hour now and then, as a
machine's clock may.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest import mock

from launch.run.work import workers

# where the driver's threads wait, and what they wait for
_MODULES = (
    "launch.run.directory.event_log",
    "launch.run.state",
    "launch.run.work.cluster",
    "launch.run.work.driver",
    "launch.run.work.fleet",
    "launch.run.work.workers",
    "tests.cluster.pretended_ray",
)
_EPOCH = 1_800_000_000.0
_HOUR = 3600.0
_JUMPS = 0.02  # of the looks at the clock
_STUCK_SECONDS = 60.0  # of real time, for a turn


class Stuck(Exception):
    """No thread can go on, whatever time passes."""


class _Turn:
    """A thread's place in the order: what it waits for, and until when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.until: Callable[[], bool] | None = None
        self.deadline: float | None = None
        self.ended = False
        self.go = threading.Semaphore(0)

    def can_go_on(self, now: float) -> bool:
        if self.until is None or self.until():
            return True
        return self.deadline is not None and self.deadline <= now


class VirtualWorld:
    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.turns = 0  # that were given, to compare executions by
        self._draw = random.Random(f"turns of {seed}")
        self._skew = 0.0
        self._main = _Turn("driver")
        self._threads: list[_Turn] = [self._main]
        self._of: dict[int, _Turn] = {threading.get_ident(): self._main}
        self._stuck: Stuck | None = None

    # ---- turns

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Give the turn away until `until()` holds or the time is over; whether it
        holds."""
        mine = self._of[threading.get_ident()]
        mine.until = until
        mine.deadline = None if timeout is None else self.now + max(timeout, 0.0)
        self._pass_on(mine)
        mine.until = None
        return until()

    def _pass_on(self, mine: _Turn) -> None:
        following = self._next()
        if following is mine:
            return
        following.go.release()
        if not mine.ended and not mine.go.acquire(timeout=_STUCK_SECONDS):
            raise Stuck(f"{following.name} blocks outside of this world")
        if self._stuck is not None and mine is self._main:
            raise self._stuck

    def _next(self) -> _Turn:
        living = [each for each in self._threads if not each.ended]
        able = [each for each in living if each.can_go_on(self.now)]
        if not able:
            deadlines = [each.deadline for each in living if each.deadline is not None]
            if not deadlines:
                self._stuck = Stuck(f"{[each.name for each in living]} wait for ever")
                return self._main
            self.now = min(deadlines)
            able = [each for each in living if each.can_go_on(self.now)]
        self.turns += 1
        return self._draw.choice(able)

    def begin(self, name: str, run: Callable[[], None]) -> _Turn:
        """A new thread, which waits for its first turn."""
        turn = _Turn(name)

        def live() -> None:
            self._of[threading.get_ident()] = turn
            turn.go.acquire()
            try:
                run()
            finally:
                turn.ended = True
                self._pass_on(turn)

        self._threads.append(turn)
        threading.Thread(target=live, name=name, daemon=True).start()
        return turn

    # ---- the clock

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        if self._draw.random() < _JUMPS:
            self._skew = self._draw.choice([-_HOUR, 0.0, _HOUR])
        return _EPOCH + self.now + self._skew

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    # ---- what modules see

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        clock = _Instead(
            time, monotonic=self.monotonic, time=self.time, sleep=self.sleep
        )
        threads = _Instead(
            threading,
            Lock=lambda: VirtualLock(self),
            Event=lambda: VirtualEvent(self),
            Thread=lambda **given: VirtualThread(self, **given),
        )
        with contextlib.ExitStack() as stack:
            for name in _MODULES:
                module = importlib.import_module(name)
                for instead in (clock, threads):
                    if hasattr(module, instead.name):
                        patch = mock.patch.object(module, instead.name, instead)
                        stack.enter_context(patch)
            stack.enter_context(mock.patch.object(workers, "_begun", _at_once))
            yield

    def end(self) -> None:
        """Let every thread come to its end."""
        while any(not each.ended for each in self._threads if each is not self._main):
            self.wait(
                lambda: all(
                    each.ended for each in self._threads if each is not self._main
                ),
                _HOUR,
            )


def _at_once(call: Callable[..., Any], *given: Any) -> Future[Any]:
    """Does what others do in a thread, which the seed would not decide."""
    future: Future[Any] = Future()
    try:
        future.set_result(call(*given))
    except Exception as error:
        future.set_exception(error)
    return future


class _Instead:
    """A module with some names replaced."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.name = module.__name__
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class VirtualLock:
    """A lock that its holder may take again."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._holder: int | None = None
        self.depth = 0

    def acquire(self) -> bool:
        me = threading.get_ident()
        if self._holder != me:
            self._world.wait(lambda: self._holder is None)
            self._holder = me
        self.depth += 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if not self.depth:
            self._holder = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class VirtualEvent:
    def __init__(self, world: VirtualWorld) -> None:
        self._world, self._set = world, False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        return self._world.wait(self.is_set, timeout)


class VirtualThread:
    def __init__(
        self,
        world: VirtualWorld,
        target: Callable[[], None],
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._world, self._target, self.name = world, target, name
        self._turn: _Turn | None = None

    def start(self) -> None:
        self._turn = self._world.begin(self.name, self._target)
