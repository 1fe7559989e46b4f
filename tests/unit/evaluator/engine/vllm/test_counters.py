"""Where the time of an engine goes: busy in steps, waiting or idle between them, nothing before and after."""

import pytest

from evaluator.engine.base import EngineStats
from evaluator.engine.vllm import counters as module
from evaluator.engine.vllm.counters import Counters


@pytest.fixture
def clock(monkeypatch):
    """Sets what the time is."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])

    def at(seconds: float) -> None:
        now[0] = seconds

    return at


def _step(counters: Counters, clock, begin: float, end: float, *, was_empty: bool = False) -> None:
    clock(begin)
    with counters.step(was_empty=was_empty):
        clock(end)


def test_time_between_steps_is_waiting_or_idle(clock):
    counters = Counters()
    counters.begin_run()
    _step(counters, clock, 10, 11)
    _step(counters, clock, 13, 14)
    _step(counters, clock, 18, 20, was_empty=True)
    stats = counters.stats()
    assert (stats.steps, stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (3, 4, 2, 4)


def test_nothing_counts_between_two_runs(clock):
    counters = Counters()
    counters.begin_run()
    _step(counters, clock, 0, 1)
    counters.begin_run()
    _step(counters, clock, 50, 51)
    stats = counters.stats()
    assert (stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (2, 0, 0)


def test_a_step_that_fails_is_no_step(clock):
    counters = Counters()
    counters.begin_run()
    with pytest.raises(RuntimeError), counters.step(was_empty=False):
        raise RuntimeError
    assert counters.stats().steps == 0


def test_cached_prompt_tokens_were_not_computed():
    counters = Counters()
    counters.end_request(10, 4, 3)
    counters.end_request(5, 0, 1)
    assert counters.stats() == EngineStats(
        requests=2,
        prompt_tokens=11,
        cached_tokens=4,
        generated_tokens=4,
        busy_seconds=0.0,
        waiting_seconds=0.0,
        idle_seconds=0.0,
    )
