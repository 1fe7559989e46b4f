"""Our driver on vLLM's own engine core, with a device that takes a fixed time for a
step."""

import functools
import json

import pytest

from evaluator.engine.config import EngineConfig
from tests.support.engines import needs_vllm
from tests.support.runs import resurface_apart

pytestmark = needs_vllm
PACE = 0.004


class Time:
    """A clock that only those move who sleep."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@functools.cache
def planned():
    from benchmarks.host import EVERY_PROBE
    from benchmarks.serving import workload
    from evaluator.probes.planning import tokenised

    model = workload.model_directory("bundled")
    read = workload.read_questions("gazetteer", model, 3, probes=EVERY_PROBE)
    return (
        model,
        read,
        [
            tokenised(question, read.prompter, read.config)
            for question in read.questions
        ],
    )


def ran(monkeypatch, handling: float, **settings):
    """A run of a driver that takes so long between two steps: its engine, its
    device, the time, and its records."""
    from benchmarks import device, host

    time, (model, read, plans) = Time(), planned()
    monkeypatch.setattr(device.PacedExecutor, "sleep", staticmethod(time.sleep))
    monkeypatch.setattr(device.PacedExecutor, "now", staticmethod(time.now))
    found = []
    monkeypatch.setattr(host, "to_table", found.extend)
    monkeypatch.setattr(host, "parquet_bytes", lambda _: b"")
    script, slow = host.scripted(model, read, plans), device.Device(PACE, time.now)
    engine = host.HostEngine(EngineConfig(**settings), model, script, slow)
    step = engine._client.get_output

    def late():
        time.sleep(handling)
        return step()

    engine._client.get_output = late
    host.one_round(engine, plans, read)
    return engine, slow, time, sorted(map(repr, found))


def test_records_depend_on_no_schedule(monkeypatch):
    """Neither on rows nor on bursts, which compute prompts in fewer steps."""
    from benchmarks.host import EVERY_PROBE

    *_, records = ran(monkeypatch, 0.0)
    *_, others = ran(monkeypatch, 0.01, max_num_seqs=5, block_size=32)
    assert others == records
    for probe in EVERY_PROBE:
        assert any(
            f"probe='{probe}'" in record and "status='ok'" in record
            for record in records
        )
    assert any(
        "probe='greedy'" in record and "contains=True" in record for record in records
    )
    steady, _, _, records = ran(monkeypatch, 0.0, max_num_seqs=24)
    bursts, _, _, others = ran(monkeypatch, 0.0, max_num_seqs=24, cuda_graphs="decode")
    assert others == records
    assert bursts.counts["mixed"] < steady.counts["mixed"]
    # a rollout may be cancelled before it arrives
    arrivals = steady.counts["arrivals"]
    assert bursts.counts["arrivals"] == pytest.approx(arrivals, rel=0.02)


@pytest.mark.parametrize(("handling", "idle"), [(0.0, 0.0), (1.5 * PACE, 1 / 3)])
def test_slow_host_leaves_device_idle(monkeypatch, handling, idle):
    engine, device, *_ = ran(monkeypatch, handling)
    assert engine.counts["steps"] == device.steps > 30
    assert device.idle_share == pytest.approx(idle, abs=0.02)


@pytest.mark.long
def test_two_engines_share_device():
    options = ("--pace", "1", "--rows", "16", "--items", "6", "--engines", "2")
    done = resurface_apart("bench", "host", *options)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["items"] == 6
    assert 0 <= figures["idle_share"] < 1
    assert figures["processor"]
    parts = figures["parts"]
    assert figures["host_ms_a_step"] == pytest.approx(sum(parts.values()))
    assert min(parts["vllm"], parts["ours"]) > 0
