"""Where the time of an engine goes, with clocks and a GPU's events whose times the
test sets."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.engine.vllm import counters as counters_module
from evaluator.engine.vllm.counters import Counters, DeviceClock, device_clock


class Gpu:
    """A stream: an event is reached when all before it has been computed, at a time
    in milliseconds."""

    def __init__(self) -> None:
        self.time = 0.0  # at which everything launched so far will have been computed
        self.now = 0.0

    def event(self) -> Event:
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self._gpu.time = max(self._gpu.time, self._gpu.now)

    def query(self) -> bool:
        return self._gpu.now >= self.at

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return end.at - self.at


class V2Runner:
    """A step takes 4 ms in all, 1 ms of them for inputs."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.step_timing = SimpleNamespace(forward_start=lambda: None)

    def execute_model(self, scheduled: str) -> None:
        self._gpu.now += 1  # the processor prepares inputs
        self.step_timing.forward_start()
        self._gpu.time = max(self._gpu.time, self._gpu.now) + 2

    def sample_tokens(self, grammar: None) -> str:
        self._gpu.time += 1
        return "tokens"


@pytest.fixture
def gpu():
    return Gpu()


def test_step_lasts_from_inputs_to_samples(gpu):
    """A step lasts from its inputs to its samples."""
    clock, runner = DeviceClock(gpu.event), V2Runner(gpu)
    clock.watch(runner)
    runner.execute_model("a step")
    assert runner.sample_tokens(None) == "tokens"
    assert clock.seconds() == 0  # the GPU has not come to its end
    gpu.now = 100
    assert clock.seconds() == pytest.approx(0.003)
    assert clock.seconds() == pytest.approx(0.003)


def test_steps_launched_ahead_count_once(gpu):
    clock, runner = DeviceClock(gpu.event), V2Runner(gpu)
    clock.watch(runner)
    for _ in range(5):
        runner.execute_model("a step")
        runner.sample_tokens(None)
    gpu.now = 8.5  # the first began at 1 and took 3, so the second ended at 7
    assert clock.seconds() == pytest.approx(0.006)
    gpu.now = 100
    assert clock.seconds() == pytest.approx(0.015)


def test_gpu_busy_time_rest_is_waiting(gpu, monkeypatch):
    """Busy is what the gpu took and the rest was waited."""
    monkeypatch.setattr("time.perf_counter", lambda: gpu.now / 1000)
    clock, runner = DeviceClock(gpu.event), V2Runner(gpu)
    clock.watch(runner)
    runner.execute_model("before the load")
    runner.sample_tokens(None)
    gpu.now = 100
    counters = Counters(clock)
    counters.begin_run()
    for was_empty in (False, False, True):
        with counters.step(was_empty=was_empty):
            gpu.now += 10  # the processor schedules
            runner.execute_model("a step")
            runner.sample_tokens(None)
            gpu.now += 20  # the output is read
        gpu.now += 5  # responses are handled
    stats = counters.stats()
    assert stats.steps == 3
    assert (stats.busy_seconds, stats.idle_seconds) == (
        pytest.approx(0.009),
        pytest.approx(0.005),
    )
    # of 3 x 31 ms and 2 x 5
    assert stats.waiting_seconds == pytest.approx(0.103 - 0.005 - 0.009)


@pytest.mark.parametrize(
    ("workers", "engine_core"),
    [(2, SimpleNamespace(engine_core="in this process")), (1, SimpleNamespace())],
    ids=["workers of their own", "a core of its own"],
)
def test_other_processes_have_no_time(workers, engine_core):
    clock = device_clock(SimpleNamespace(engine_core=engine_core), workers=workers)
    assert clock.seconds() is None
    counters = Counters(clock)
    counters.begin_run()
    with counters.step(was_empty=False):
        pass
    stats = counters.stats()
    assert (
        stats.steps,
        stats.busy_seconds,
        stats.waiting_seconds,
        stats.idle_seconds,
    ) == (1, None, None, None)
    assert stats.shares() == {"idle_share": None, "waiting_share": None}


def test_device_clock_watches_own_worker(gpu, monkeypatch):
    """The worker of this process is watched and the v2 runner says when inputs are
    there."""
    monkeypatch.setattr("torch.cuda.Event", lambda enable_timing: gpu.event())
    worker, core = (
        SimpleNamespace(model_runner=V2Runner(gpu)),
        SimpleNamespace(engine_core="in this process"),
    )
    clock = device_clock(
        SimpleNamespace(engine_core=core, collective_rpc=lambda call: [call(worker)]),
        workers=1,
    )
    worker.model_runner.execute_model("a step")
    worker.model_runner.sample_tokens(None)
    gpu.now = 100
    assert clock.seconds() == pytest.approx(0.003)
    package = find_spec("vllm")
    runner = (
        Path(str(package and package.origin)).with_name("v1")
        / "worker"
        / "gpu"
        / "model_runner.py"
    )
    if not runner.is_file():
        pytest.skip("vLLM is not installed, or has no V2 runner")
    source = runner.read_text()
    execute, sample = (
        source.index("def execute_model("),
        source.index("def sample_tokens("),
    )
    assert execute < source.index("self.step_timing.forward_start()") < sample


@pytest.fixture
def clock(monkeypatch):
    """Sets what the time is."""
    now = [0.0]
    monkeypatch.setattr(counters_module.time, "perf_counter", lambda: now[0])

    def at(seconds):
        now[0] = seconds

    return at


def _step(
    counters: Counters, clock, begin: float, end: float, *, was_empty: bool = False
) -> None:
    clock(begin)
    with counters.step(was_empty=was_empty):
        clock(end)


def test_time_between_steps_waits_or_idles(clock):
    """Time between steps of a run is waiting or idle and a failed step is none."""
    counters = Counters()
    counters.begin_run()
    _step(counters, clock, 10, 11)
    _step(counters, clock, 13, 14)
    _step(counters, clock, 18, 20, was_empty=True)
    stats = counters.stats()
    assert (
        stats.steps,
        stats.busy_seconds,
        stats.waiting_seconds,
        stats.idle_seconds,
    ) == (3, 4, 2, 4)
    assert stats.shares() == {"idle_share": 0.4, "waiting_share": 0.2}
    counters.begin_run()  # nothing counts between two runs
    _step(counters, clock, 50, 51)
    stats = counters.stats()
    assert (stats.busy_seconds, stats.waiting_seconds, stats.idle_seconds) == (5, 2, 4)
    counters = Counters()
    counters.begin_run()
    with pytest.raises(RuntimeError), counters.step(was_empty=False):
        raise RuntimeError
    assert counters.stats().steps == 0
