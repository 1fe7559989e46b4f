"""Where the time of an engine goes, with clocks and a GPU's events whose times the
test sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from evaluator.engine.vllm.counters import Counters, device_clock


class Event:
    """Reached when all before it has been computed, at a time in milliseconds."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self._gpu.time = max(self._gpu.time, self._gpu.now)

    def query(self) -> bool:
        return self._gpu.now >= self.at

    def elapsed_time(self, end: Event) -> float:
        assert end.query()
        return end.at - self.at


class Gpu:
    """And its V2 runner: a step takes 4 ms in all, 1 ms of them for inputs."""

    def __init__(self) -> None:
        self.time = 0.0  # at which everything launched so far will have been computed
        self.now = 0.0
        self.step_timing = SimpleNamespace(forward_start=lambda: None)

    def step(self) -> None:
        self.now += 1  # the processor prepares inputs
        self.step_timing.forward_start()
        self.time = max(self.time, self.now) + 2
        assert self.sample_tokens(None) == "tokens"

    def sample_tokens(self, grammar: None) -> str:
        self.time += 1
        return "tokens"


@pytest.fixture
def gpu():
    return Gpu()


@pytest.fixture
def clock(gpu, monkeypatch):
    """As an engine in this process has it."""
    monkeypatch.setattr("torch.cuda.Event", lambda enable_timing: Event(gpu))
    worker = SimpleNamespace(model_runner=gpu)
    llm = SimpleNamespace(collective_rpc=lambda call: [call(worker)])
    return device_clock(llm, workers=1)


def test_gpu_busy_time_rest_is_waiting(gpu, clock, monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: gpu.now / 1000)
    gpu.step()  # before the load
    gpu.now = 100
    counters = Counters(clock)
    counters.begin_run()
    for was_empty in (False, False, True):
        with counters.step(was_empty=was_empty):
            gpu.now += 10  # the processor schedules
            gpu.step()
            gpu.now += 20  # the output is read
        gpu.now += 5  # responses are handled
    stats = counters.stats()
    assert stats.steps == 3
    assert stats.busy_seconds == pytest.approx(0.009)
    assert stats.idle_seconds == pytest.approx(0.005)
    # of 3 x 31 ms and 2 x 5
    assert stats.waiting_seconds == pytest.approx(0.103 - 0.005 - 0.009)


def test_time_between_steps_waits_or_idles(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    counters = Counters()
    for begin, end, was_empty in (
        (10, 11, None),
        (13, 14, False),
        (18, 20, True),
        (50, 51, None),  # nothing counts between two runs
    ):
        if was_empty is None:
            counters.begin_run()
        now = begin
        with counters.step(was_empty=bool(was_empty)):
            now = end
    stats = counters.stats()
    assert (stats.steps, stats.busy_seconds) == (4, 5)
    assert (stats.waiting_seconds, stats.idle_seconds) == (2, 4)
    assert stats.shares() == {"idle_share": 4 / 11, "waiting_share": 2 / 11}
    with pytest.raises(RuntimeError), counters.step(was_empty=False):
        raise RuntimeError
    assert counters.stats().steps == 4
