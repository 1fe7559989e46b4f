"""Our engine on vLLM's V2 model runner, on a CPU, for a GPU that computes nothing.

`HostEngine` has an account of the host's time by parts.

Replaces methods of vLLM's `InprocClient`, `EngineCore`, `Scheduler`, `AsyncOutput` and
runner by themselves, timed.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from vllm.v1.worker.gpu.async_utils import AsyncOutput

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import Started
from tests.support.scripted import Answers, without_kernels

SIMULATION = "simulation"  # the part of an account that no host has
PREPARATION = "preparation"


class Account:
    """A thread's seconds by parts. A part within another is not counted twice.
    `marks` are the host's seconds at which a step is launched (True), and at which
    the host waits for the oldest one (False)."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.marks: list[tuple[float, bool]] = []
        self.part, self._since = "ours", time.perf_counter()

    def begin(self) -> None:
        """Forget all so far."""
        self.enter(self.part)
        for past in (self.seconds, self.counts, self.marks):
            past.clear()

    def enter(self, part: str) -> str:
        """Go on with another part; returns the one before."""
        now, before = time.perf_counter(), self.part
        self.seconds[before] = self.seconds.get(before, 0.0) + now - self._since
        self.part, self._since = part, now
        return before

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, as a part."""

        def run(*arguments: Any, **named: Any) -> Any:
            before = self.enter(part)
            try:
                return call(*arguments, **named)
            finally:
                self.enter(before)

        return run

    def mark(self, *, launched: bool) -> None:
        self.enter(self.part)
        host = sum(self.seconds.values()) - self.seconds.get(SIMULATION, 0.0)
        self.marks.append((host, launched))


class HostEngine(VLLMEngine):
    """Has the answers, and computes nothing."""

    def __init__(self, config: EngineConfig, answers: Answers) -> None:
        super().__init__(config)
        self.account, self._answering = Account(), answers

    def _checked(self, started: Started, checkpoint: Any) -> Started:
        """Instruments the engine. There are no kernels to check."""
        client, timed = started.llm.engine_core, self.account.timed
        core, answers = client.engine_core, self._answering
        runner = core.model_executor.driver_worker.worker.model_runner
        for name in ("begin", "sampled", "reported"):
            setattr(answers, name, timed(SIMULATION, getattr(answers, name)))
        without_kernels(runner, answers, self.account.counts)
        self._mark(runner)
        for owner, name, part in (
            (client, "add_request", "requests"),
            (client, "abort_requests", "requests"),
            (core, "request_block_hasher", "hashing"),
            (client, "get_output", "scheduler"),
            (core.scheduler, "update_from_output", "outputs"),
            (AsyncOutput, "get_output", "outputs"),
            (runner, "execute_model", PREPARATION),
            (runner, "sample_tokens", PREPARATION),
        ):
            setattr(owner, name, timed(part, getattr(owner, name)))
        return started

    def _mark(self, runner: Any) -> None:
        account = self.account
        execute, get_output = runner.execute_model, AsyncOutput.get_output

        def executed(step: Any, *more: Any) -> Any:
            result = execute(step, *more)
            if step.num_scheduled_tokens:
                account.mark(launched=True)
            return result

        def waited(output: AsyncOutput) -> Any:
            account.mark(launched=False)
            return get_output(output)

        runner.execute_model, AsyncOutput.get_output = executed, waited
