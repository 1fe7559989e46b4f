"""How many engines a GPU gets, from what they count."""

from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from evaluator.core.records import EngineStats
from launch.provenance import Room
from launch.run.decide.sharing import Trial, cores_of, most_engines

GIB = 2**30
H100 = Room(memory=78 * GIB, total=80 * GIB, cores=16, gpus=1, mps=True)


@pytest.mark.parametrize(
    ("room", "weights", "longest", "most", "limit"),
    [
        ({}, 1.2, 500, 4, "4 is the most"),
        ({}, 16, 500, 3, "78 GiB are free, the weights take 16.0"),
        ({}, 140, 500, 1, "78 GiB are free"),
        ({"memory": 20 * GIB}, 1.2, 500, 2, "20 GiB are free"),  # others use it
        ({"gpus": 8}, 1.2, 500, 1, "16 physical cores for 8 GPUs"),
        ({"gpus": 3}, 1.2, 500, 2, "16 physical cores for 3 GPUs"),
        ({}, 1.2, 30_000, 1, "requests of 30,000 tokens need the whole cache"),
        ({"memory": None}, 1.2, 500, 1, "the memory of the GPU is unknown"),
    ],
)
def test_room_for_engines(room, weights, longest, most, limit):
    found = most_engines(replace(H100, **room), int(weights * GIB), longest)
    assert found[0] == most
    assert found[1].startswith(limit)


def trial(rates, busy, *, most=4, mps=True, items=100_000, start=20.0):
    """The decisions of a GPU on which n engines do `rates[n - 1]` steps a second
    together, and that works the share `busy` of one engine's time."""
    found = Trial(most, "4 is the most", mps=mps)
    told, left, steps = [], items, [0.0] * 4
    for second in count():
        assert second < 1000
        if found.settled:
            break
        rate = rates[found.engines - 1]
        for engine in range(found.engines):
            steps[engine] += rate / found.engines
        left -= int(rate)
        stats = [
            EngineStats(
                steps=int(each),
                requests=int(100 * each),
                busy_seconds=busy * each,
                waiting_seconds=(1 - busy) * each,
            )
            for each in steps[: found.engines]
        ]
        if line := found.look(float(second), stats, partial(int, left), start):
            told.append(line)
    return found.engines, told


@pytest.mark.parametrize(
    ("rates", "busy", "more", "engines", "told"),
    [
        # up to the most
        ([50, 90, 120, 140], 0.3, {}, 4, "4 on each GPU: 4 do 1.17 times the work of 3; 4 is"),
        # until one adds too little
        ([50, 90, 95], 0.3, {}, 2, "2 on each GPU: 3 do 1.06 times the work of 2, less"),
        ([50, 40], 0.3, {}, 1, "1 on each GPU: 2 do 0.80 times the work of 1, less"),
        # a busy GPU, or one whose time nobody knows
        ([50], 0.7, {}, 1, "1 on each GPU: the GPU works 70% of the time"),
        ([50], 0.0, {}, 1, "1 on each GPU: the GPU's time is not measured"),
        ([50, 90], 0.3, {"most": 2}, 2, "2 on each GPU: 2 do 1.80 times the work of 1;"),
        # too little work: ten starts without MPS, two with it
        ([50], 0.3, {"mps": False, "items": 9_000}, 1, "1 on each GPU: the GPU works 30% "),
        ([50, 40], 0.3, {"items": 9_000}, 1, "1 on each GPU: 2 do 0.80 times"),
    ],
)  # fmt: skip
def test_engines_are_added_while_they_gain(rates, busy, more, engines, told):
    found, lines = trial(rates, busy, **more)
    assert found == engines
    assert lines[-1].startswith(told)
    assert all("trying" in line for line in lines[:-1])


def test_first_trial_says_that_mps_is_off():
    _, lines = trial([50, 40], 0.3, mps=False)
    assert lines[0] == "the GPU works 30% of the time: trying 2 engines, without MPS"


def test_failed_start_ends_the_trial():
    found = Trial(4, "")
    found.engines = 2
    assert found.refused("out of memory") == (
        "1 on each GPU: another did not start: out of memory"
    )
    assert (found.engines, found.settled) == (1, True)


def test_measurement_begins_again_after_a_load():
    """A load resets the counters."""
    found = Trial(2, "")
    busy = {"requests": 1, "busy_seconds": 1.0, "waiting_seconds": 9.0}
    for second, steps in ((0, 10), (20, 5), (40, 104), (60, 105)):
        stats = EngineStats(steps=steps, **busy)
        assert (found.look(second, [stats], lambda: 10, 1.0) is None) == (second < 60)


def test_each_engine_has_its_own_physical_cores():
    cores = [frozenset({n, n + 8}) for n in range(8)]
    found = [cores_of(place, 3, cores) for place in range(3)]
    assert found == [{0, 1, 8, 9}, {2, 3, 10, 11}, {4, 5, 12, 13}]
    assert cores_of(0, 9, cores) == frozenset()
