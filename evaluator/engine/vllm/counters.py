"""What one engine has done since its last load, and how the time of its runs was spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evaluator.engine.base import EngineStats

if TYPE_CHECKING:
    from evaluator.engine.vllm.device_clock import DeviceClock


@dataclass(slots=True)
class Counters:
    """`EngineStats` while it is being counted.

    Time counts between the first step of a run and its last one. Between two steps the driver handles responses,
    tokenises and admits new requests: the engine waits, or is idle if it holds no request meanwhile.

    A processor computes in the steps and nowhere else. A GPU (`device`) computes while this process does other things,
    and waits in steps too: its own clock says how long it was busy, and what is left of the time was waited.
    """

    device: DeviceClock | None = None
    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    _in_steps: float = field(default=0.0, init=False)
    _between: float = field(default=0.0, init=False)  # steps, with requests
    _idle: float = field(default=0.0, init=False)
    _device_before: float = field(default=0.0, init=False)
    _began: float = field(default=0.0, init=False)
    _ended: float | None = field(default=None, init=False)  # when the last step of this run did

    def __post_init__(self) -> None:
        if self.device is not None:
            self._device_before = self.device.seconds() or 0.0

    def begin_run(self) -> None:
        self._ended = None

    def begin_step(self, *, was_empty: bool) -> None:
        """`was_empty`: the step before left the engine without a request."""
        self._began = time.perf_counter()
        if self._ended is None:
            return
        if was_empty:
            self._idle += self._began - self._ended
        else:
            self._between += self._began - self._ended

    def end_step(self) -> None:
        self._ended = time.perf_counter()
        self._in_steps += self._ended - self._began
        self.steps += 1
        if self.device is not None:
            self.device.seconds()  # it forgets the steps that have ended

    def end_request(self, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> None:
        """Count a request that was finished, or cancelled after it had begun; `prompt_tokens` with those cached."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens - cached_tokens
        self.cached_tokens += cached_tokens
        self.generated_tokens += generated_tokens

    def stats(self) -> EngineStats:
        busy, waiting = self._in_steps, self._between
        if self.device is not None:
            read = self.device.seconds()
            if read is None:
                return self._counted(None, None, None)
            held = busy + waiting  # while the engine held requests
            busy = read - self._device_before
            waiting = max(0.0, held - busy)
        return self._counted(busy, waiting, self._idle)

    def _counted(self, busy: float | None, waiting: float | None, idle: float | None) -> EngineStats:
        return EngineStats(
            requests=self.requests,
            steps=self.steps,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            cached_tokens=self.cached_tokens,
            busy_seconds=busy,
            waiting_seconds=waiting,
            idle_seconds=idle,
        )
