"""How long a GPU has computed for an engine: the time between two events of each step, as the GPU itself takes it.

A step's time runs from the start of the model's forward pass to the end of sampling. Scheduling, the inputs and all
that the processor does between two steps do not count. Where the GPU waits for launches within a step, it counts as
busy: without CUDA graphs this time is an upper bound.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch


class DeviceClock:
    """Adds up the steps that have ended. One thread runs the engine, and another may read the sum."""

    def __init__(self, new_event: Callable[[], Any] | None = None) -> None:
        self._new_event = new_event or functools.partial(torch.cuda.Event, enable_timing=True)
        self._seconds: float | None = None  # unknown, until there is a model runner to watch
        self._start: Any = None  # of the step that is being launched
        self._launched: deque[tuple[Any, Any]] = deque()  # start and end of steps whose end has not been seen
        self._lock = threading.Lock()

    def watch(self, runner: Any) -> None:
        """Time what this model runner of vLLM executes from now on."""
        self._seconds = 0.0
        timing = getattr(runner, "step_timing", None)  # the V2 runner calls it when the inputs of a step are there
        at = (timing, "forward_start") if hasattr(timing, "forward_start") else (runner, "execute_model")
        _wrap(*at, before=self._begin)
        _wrap(runner, "sample_tokens", after=self._end)

    def seconds(self) -> float | None:
        """Of all steps that have ended; None: they are not timed."""
        with self._lock:
            while self._launched and self._launched[0][1].query():
                start, end = self._launched.popleft()
                assert self._seconds is not None
                self._seconds += start.elapsed_time(end) / 1000
            return self._seconds

    def _begin(self) -> None:
        self._start = self._recorded()

    def _end(self) -> None:
        if self._start is not None:
            self._launched.append((self._start, self._recorded()))
            self._start = None

    def _recorded(self) -> Any:
        event = self._new_event()
        event.record()
        return event


def device_clock(llm: Any, *, workers: int) -> DeviceClock:
    """The clock of an engine that computes on GPUs. It tells no time where workers have processes of their own."""
    clock = DeviceClock()
    if workers == 1 and hasattr(llm.engine_core, "engine_core"):
        llm.collective_rpc(lambda worker: clock.watch(worker.model_runner))
    return clock


def _wrap(
    owner: Any, name: str, *, before: Callable[[], None] | None = None, after: Callable[[], None] | None = None
) -> None:
    """Call `before` and `after` around a method of one object."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if before is not None:
            before()
        result = method(*arguments, **named)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)
