"""Our driver on vLLM's own engine core, with a device that takes a fixed time for a
step."""

import functools
import json

import msgspec
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
    engine = host.HostEngine(
        EngineConfig(**settings), model, script, slow, host.Parts()
    )
    step = engine._client.get_output

    def late():
        time.sleep(handling)
        return step()

    engine._client.get_output = late
    host.one_round(engine, plans, read)
    records = [msgspec.structs.replace(record, cached_tokens=None) for record in found]
    return engine, slow, time, sorted(map(repr, records))


def test_records_depend_neither_on_rows_nor_on_bursts_which_compute_prompts_in_fewer_steps(
    monkeypatch,
):
    *_, records = ran(monkeypatch, 0.0)
    *_, others = ran(monkeypatch, 0.01, max_num_seqs=5, block_size=32)
    assert others == records
    for probe in (
        "greedy",
        "beam",
        "sample",
        "choice",
        "rank",
        "aligned_rank",
        "hard_choice",
    ):
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
    assert bursts.counts["arrivals"] == steady.counts["arrivals"]


@pytest.mark.parametrize(
    ("handling", "idle"), [(0.0, 0.0), (0.9 * PACE, 0.0), (1.5 * PACE, 1 / 3)]
)
def test_the_device_is_idle_where_the_host_takes_longer_than_a_step(
    monkeypatch, handling, idle
):
    engine, device, *_ = ran(monkeypatch, handling)
    assert engine.counts["steps"] == device.steps > 30
    assert device.idle_share == pytest.approx(idle, abs=0.02)


def test_the_floor_repeats_every_step(monkeypatch):
    from benchmarks.device import Device

    engine, _, time, _ = ran(monkeypatch, 0.0)
    before = engine.counts
    alone = Device(PACE, time.now)
    engine.repeat(engine.begin(alone))
    assert engine.counts == before
    assert alone.steps == before["steps"]


def test_a_step_that_is_under_way_ends_though_its_only_request_was_cancelled(
    monkeypatch,
):
    from benchmarks.device import Device

    engine, _, time, _ = ran(monkeypatch, 0.0)
    arrived = engine.begin(Device(PACE, time.now))
    request = max(
        (sent for _, sent in arrived if not isinstance(sent, list)),
        key=lambda sent: sent.request_id,
    )
    engine._client.add_request(request)
    # the first step's; the second is under way
    while not engine._client.get_output().outputs:
        pass
    assert engine._core.batch_queue
    engine._client.abort_requests([request.request_id])
    engine.begin(Device(PACE, time.now))
    assert not engine._core.batch_queue


@pytest.mark.more
def test_two_engines_share_the_device_and_the_items():
    done = resurface_apart(
        "bench", "host", "--pace", "1", "--rows", "16", "--items", "6", "--engines", "2"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {
        "idle_share",
        "host_ms_a_step",
        "parts",
        "processor",
        "floor",
    } <= found.keys()
    assert found["items"] == 6
    assert found["host_ms_a_step"] == pytest.approx(sum(found["parts"].values()))
    assert found["floor"]["host_ms_a_step"] > 0
    assert all(
        found["parts"][name] > 0
        for name in ("schedule", "update", "receiver", "sources", "records")
    )
    assert all(
        found["floor"]["parts"][name] == 0
        for name in ("receiver", "sources", "records")
    )
