"""What one engine has done since its last load, and how the time of its runs was spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields, replace
from typing import Any

from evaluator.engine.base import EngineStats


@dataclass(slots=True)
class Counters:
    """`EngineStats` while it is being counted.

    The engine core computes in its steps only. Between two steps of a run the driver handles responses, tokenises and
    admits new requests: the engine waits, or is idle if it holds no request meanwhile. Before the first step of a run
    and after its last one no time counts.

    On a GPU vLLM schedules a step ahead, which is computed meanwhile. As long as it is, the engine is busy; once it has
    ended, how long ago is not known, and all of the time counts as waited: the share is then an upper bound.
    """

    requests: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    busy_seconds: float = 0.0
    waiting_seconds: float = 0.0
    idle_seconds: float = 0.0
    _began: float = field(default=0.0, init=False)
    _ended: float | None = field(default=None, init=False)  # when the last step of this run did
    _is_known: bool = field(default=True, init=False)  # whether the engine could be seen to compute between steps

    def begin_run(self) -> None:
        self._ended = None

    def begin_step(self, *, was_empty: bool, computing: bool | None = False) -> None:
        """`was_empty`: the step before left the engine without a request. `computing`: see `step_under_way`."""
        self._began = time.perf_counter()
        if self._ended is None:
            return
        if computing is None:
            self._is_known = False
        if computing:
            self.busy_seconds += self._began - self._ended
        elif was_empty:
            self.idle_seconds += self._began - self._ended
        else:
            self.waiting_seconds += self._began - self._ended

    def end_step(self) -> None:
        self._ended = time.perf_counter()
        self.busy_seconds += self._ended - self._began
        self.steps += 1

    def end_request(self, *, prompt_tokens: int, cached_tokens: int, generated_tokens: int) -> None:
        """Count a request that was finished, or cancelled after it had begun; `prompt_tokens` with those cached."""
        self.requests += 1
        self.prompt_tokens += prompt_tokens - cached_tokens
        self.cached_tokens += cached_tokens
        self.generated_tokens += generated_tokens

    def stats(self) -> EngineStats:
        counted = EngineStats(**{each.name: getattr(self, each.name) for each in fields(EngineStats)})
        if self._is_known:
            return counted
        return replace(counted, busy_seconds=None, waiting_seconds=None, idle_seconds=None)


def step_under_way(core: Any) -> bool | None:
    """Whether a step that vLLM has scheduled ahead is being computed; None where that cannot be seen.

    `core` is vLLM's EngineCoreClient. The newest step is the one whose output its queue was given last; a GPU's output
    carries the event that ends its copy.
    """
    inner = getattr(core, "engine_core", None)
    if inner is None:  # in another process
        return None
    if not inner.batch_queue:
        return False
    output = getattr(inner.batch_queue[0][0], "async_output", None)
    for name in ("copy_event", "async_copy_ready_event"):  # of the V2 and the V1 runner
        event = getattr(output, name, None)
        if event is not None:
            return not event.query()
    return None
