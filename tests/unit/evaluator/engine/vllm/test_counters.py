"""Where the time of an engine goes: busy in steps, waiting or idle between them, nothing before and after."""

from collections import deque
from types import SimpleNamespace

import pytest

from evaluator.engine.base import EngineStats
from evaluator.engine.vllm import counters as module
from evaluator.engine.vllm.counters import Counters, step_under_way


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
    counters.begin_step(was_empty=was_empty)
    clock(end)
    counters.end_step()


def test_time_between_steps_is_waiting_or_idle(clock):
    counters = Counters()
    counters.begin_run()
    _step(counters, clock, 10, 11)
    _step(counters, clock, 13, 14)
    _step(counters, clock, 18, 20, was_empty=True)
    stats = counters.stats()
    assert (stats.steps, stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (3, 4, 2, 4)


def test_a_step_that_is_computed_meanwhile_keeps_the_engine_busy(clock):
    counters = Counters()
    counters.begin_run()
    for begin, computing in ((10, False), (13, True), (18, False)):
        clock(begin)
        counters.begin_step(was_empty=False, computing=computing)
        clock(begin + 1)
        counters.end_step()
    stats = counters.stats()
    assert (stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (3 + 2, 4, 0)


def test_what_cannot_be_seen_is_no_number(clock):
    counters = Counters()
    counters.begin_run()
    _step(counters, clock, 10, 11)
    clock(12)
    counters.begin_step(was_empty=False, computing=None)
    counters.end_step()
    stats = counters.stats()
    assert (stats.steps, stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (2, None, None, None)
    assert stats.waiting_share is None


def core(*queued: object) -> SimpleNamespace:
    """vLLM's client of a core in this process, the newest step first."""
    steps = deque((SimpleNamespace(async_output=output), "scheduled", "executed") for output in queued)
    return SimpleNamespace(engine_core=SimpleNamespace(batch_queue=steps))


@pytest.mark.parametrize("name", ["copy_event", "async_copy_ready_event"])
@pytest.mark.parametrize("ended", [True, False])
def test_the_newest_step_says_whether_the_gpu_is_busy(name, ended):
    newest = SimpleNamespace(**{name: SimpleNamespace(query=lambda: ended)})
    older = SimpleNamespace(**{name: SimpleNamespace(query=lambda: True)})
    assert step_under_way(core(newest, older)) is not ended


def test_without_a_queue_no_step_is_under_way():
    assert step_under_way(core()) is False
    assert step_under_way(SimpleNamespace(engine_core=SimpleNamespace(batch_queue=None))) is False


def test_a_core_in_another_process_cannot_be_seen():
    assert step_under_way(SimpleNamespace()) is None
    assert step_under_way(core(SimpleNamespace())) is None


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
    counters.begin_step(was_empty=False)
    assert counters.stats().steps == 0


def test_cached_prompt_tokens_were_not_computed():
    counters = Counters()
    counters.end_request(prompt_tokens=10, cached_tokens=4, generated_tokens=3)
    counters.end_request(prompt_tokens=5, cached_tokens=0, generated_tokens=1)
    assert counters.stats() == EngineStats(
        requests=2,
        prompt_tokens=11,
        cached_tokens=4,
        generated_tokens=4,
        busy_seconds=0.0,
        waiting_seconds=0.0,
        idle_seconds=0.0,
    )
