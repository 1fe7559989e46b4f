"""The paced engine core counts a step as waiting exactly where the driver came late."""

import functools

import pytest

from tests.support.engines import needs_vllm

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
def planned(items: int):
    from benchmarks.driver import EVERY_PROBE
    from benchmarks.serving import workload
    from evaluator.probes.planning import plan_of

    model = workload.model_directory("bundled")
    read = workload.read_questions("gazetteer", model, items, probes=EVERY_PROBE)
    return model, read, [plan_of(question, read.prompter, read.config) for question in read.questions]


def made(time: Time, rows: int = 256, items: int = 3, graphs: str = "FULL"):
    from benchmarks.paced import Clock, paced_engine

    model, read, plans = planned(items)
    eos_id = min(read.prompter.eos_ids)
    clock = Clock(time.now, time.sleep)
    return paced_engine(plans, model, eos_id, pace=PACE, rows=rows, graphs=graphs, clock=clock), plans, read


def run(paced, plans, read, time: Time, seconds: float) -> list:
    """Evaluate with a driver that takes so long between two steps; returns the records."""
    from benchmarks.serving.workload import columns
    from evaluator.probes.stream import Evaluation

    engine, core = paced
    step = core.get_output

    def late():
        time.sleep(seconds)
        return step()

    core.get_output = late
    shared = columns(engine="fake", dtype="float32")
    found = Evaluation(plans, config=read.config, prompter=read.prompter, columns=shared).run(engine)
    return [record for _, records in found for record in records]


@pytest.mark.parametrize(
    ("seconds", "share", "wait"), [(0.0, 0.0, 0.0), (0.9 * PACE, 0.0, 0.0), (1.5 * PACE, 1.0, 0.5 * PACE)]
)
def test_the_share_of_steps_that_waited(seconds, share, wait):
    time = Time()
    paced, plans, read = made(time)
    run(paced, plans, read, time, seconds)
    paces = paced[1].paces
    assert len(paces.waited) > 30
    # The second step of a core is submitted at once: nothing had to be handled before it.
    assert sum(each > 0 for each in paces.waited[1:]) == share * (len(paces.waited) - 1)
    assert paces.waited[1:] == pytest.approx([wait] * (len(paces.waited) - 1), abs=1e-9)


def test_records_do_not_depend_on_rows_or_lateness_and_every_probe_has_some():
    def records(rows: int, seconds: float) -> list:
        time = Time()
        paced, plans, read = made(time, rows=rows)
        return sorted(map(repr, run(paced, plans, read, time, seconds)))

    everything = records(256, 0.0)
    assert everything == records(5, 0.01)
    time = Time()
    found = run(*made(time), time, 0.0)
    assert {record.status for record in found if record.probe != "aligned_rank"} == {"ok"}
    assert {record.probe for record in found} == {
        *("greedy", "beam", "sample", "choice", "rank", "aligned_rank", "hard_choice")
    }
    assert any(record.contains for record in found if record.probe == "greedy")
    ranks = [record.rank for record in found if record.probe == "aligned_rank" and record.status == "ok"]
    assert ranks
    assert set(ranks) == {1}


def test_in_bursts_fewer_steps_compute_prompts_and_the_records_are_the_same():
    def measured(graphs: str):
        time = Time()
        paced, plans, read = made(time, rows=24, graphs=graphs)
        return sorted(map(repr, run(paced, plans, read, time, 0.0))), paced[1].paces

    (records, steady), (others, bursts) = measured("FULL"), measured("FULL_DECODE_ONLY")
    assert others == records
    assert bursts.summary()["mixed_share"] < steady.summary()["mixed_share"]
    assert len(steady.arrivals) == len(steady.rows)
