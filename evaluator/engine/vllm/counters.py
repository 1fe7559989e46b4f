"""What one engine has done since its last load, and how the time of its runs was
spent.

Replaces `sample_tokens` of vLLM's V2 model runner, and `forward_start` of its
`step_timing`, with functions that record a GPU event and call the original. Reads
`LLMEngine.engine_core`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from evaluator.core.records import EngineStats


@dataclass(slots=True)
class Counters:
    """`EngineStats` while it is being counted.

    Time counts between the first step of a run and its last one. Between two steps the
    driver handles responses, tokenises and admits new requests: the engine waits, or is
    idle if it holds no request meanwhile.

    A processor computes only within steps. A GPU (`device`) also computes while this
    process does other work, and it waits within steps too. So the GPU's own clock
    reports its busy time, and the rest is waiting.
    """

    device: DeviceClock | None = None
    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    peak_memory: int | None = None
    _in_steps: float = field(default=0.0, init=False)
    _between: float = field(default=0.0, init=False)  # steps, with requests
    _idle: float = field(default=0.0, init=False)
    _device_before: float = field(default=0.0, init=False)
    # when the last step of this run did
    _ended: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.device is not None:
            self._device_before = self.device.seconds() or 0.0

    def begin_run(self) -> None:
        self._ended = None

    @contextlib.contextmanager
    def step(self, *, was_empty: bool) -> Iterator[None]:
        """Count the step within, unless it fails. `was_empty`: the step before left
        the engine without a request."""
        began = time.perf_counter()
        if self._ended is not None and was_empty:
            self._idle += began - self._ended
        elif self._ended is not None:
            self._between += began - self._ended
        yield
        self._ended = time.perf_counter()
        self._in_steps += self._ended - began
        self.steps += 1
        if self.device is not None:
            self.device.seconds()  # it forgets the steps that have ended

    def end_request(
        self, prompt_tokens: int, cached_tokens: int, generated_tokens: int
    ) -> None:
        """Count a request that was finished, or cancelled after it had begun;
        `prompt_tokens` with those cached."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens - cached_tokens
        self.cached_tokens += cached_tokens
        self.generated_tokens += generated_tokens

    def stats(self) -> EngineStats:
        busy: float | None = self._in_steps
        waiting: float | None = self._between
        idle: float | None = self._idle
        if self.device is not None:
            held = self._in_steps + self._between  # while the engine held requests
            if (read := self.device.seconds()) is None:
                busy = waiting = idle = None
            else:
                busy = read - self._device_before
                waiting = max(0.0, held - busy)
        return EngineStats(
            requests=self.requests,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            cached_tokens=self.cached_tokens,
            busy_seconds=busy,
            waiting_seconds=waiting,
            idle_seconds=idle,
            peak_memory=self.peak_memory,
        )


class DeviceClock:
    """How long a GPU has computed for an engine: the time between two events of each
    step, as the GPU itself takes it.

    A step's time runs from the start of the model's forward pass to the end of
    sampling. Where the GPU waits for launches within a step, it counts as busy:
    without CUDA graphs this time is an upper bound. One thread runs the engine, and
    another may read the sum."""

    def __init__(self) -> None:
        # unknown, until there is a model runner to watch
        self._seconds: float | None = None
        self._start: Any = None  # of the step that is being launched
        # start and end of steps whose end has not been seen
        self._launched: deque[tuple[Any, Any]] = deque()
        self._lock = threading.Lock()

    def watch(self, runner: Any) -> None:
        """Time what this model runner of vLLM executes from now on."""
        self._seconds = 0.0
        # the V2 runner calls it when the inputs of a step are there
        timing = runner.step_timing
        begins, ends = timing.forward_start, runner.sample_tokens

        def begin(*arguments: Any, **named: Any) -> Any:
            self._start = self._recorded()
            return begins(*arguments, **named)

        def end(*arguments: Any, **named: Any) -> Any:
            result = ends(*arguments, **named)
            if self._start is not None:
                self._launched.append((self._start, self._recorded()))
                self._start = None
            return result

        timing.forward_start = begin
        runner.sample_tokens = end

    def seconds(self) -> float | None:
        """The seconds of all finished steps; None if steps are not timed."""
        with self._lock:
            while self._launched and self._launched[0][1].query():
                start, end = self._launched.popleft()
                assert self._seconds is not None
                self._seconds += start.elapsed_time(end) / 1000
            return self._seconds

    def _recorded(self) -> Any:
        import torch

        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def device_clock(llm: Any, *, workers: int) -> DeviceClock:
    """The clock of an engine on GPUs. It measures nothing if the workers have
    separate processes."""
    clock = DeviceClock()
    if workers == 1:
        llm.collective_rpc(lambda worker: clock.watch(worker.model_runner))
    return clock
