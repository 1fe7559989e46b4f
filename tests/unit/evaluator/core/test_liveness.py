"""Who may write a run directory, what is a hang and what is only slow: decided
without files, clocks or processes."""

from dataclasses import replace

import pytest

from evaluator.core.liveness import (
    HangWatch,
    LeaseClaim,
    Pace,
    SilenceWatch,
    decide,
    this_process,
)

CLAIM = LeaseClaim(number=7, token="t", owner=this_process(), locked=True)
PACE = Pace(beat_seconds=5.0, missed=3, look_seconds=1.0)


UNLOCKED, RELEASED = replace(CLAIM, locked=False), replace(CLAIM, released=True)
SEEN = {"running": "refuse", "gone": "take", "stopped": "watch", "elsewhere": "watch"}


@pytest.mark.parametrize(
    ("last", "sight", "locked_by_another", "decision"),
    [
        *((CLAIM, sight, False, decision) for sight, decision in SEEN.items()),
        *((RELEASED, sight, False, "take") for sight in SEEN),
        (None, "elsewhere", False, "take"),
        # a lock that no claim explains is a process that is just claiming
        *((last, "gone", True, "refuse") for last in (None, RELEASED, CLAIM)),
        # a stopped process keeps that of a driver before the last one, which could not
        # get it
        (UNLOCKED, "gone", True, "take"),
        (replace(UNLOCKED, released=True), "running", True, "take"),
        (CLAIM, "stopped", True, "watch"),
    ],
)
def test_lease_decisions(last, sight, locked_by_another, decision):
    """What is seen of the owner and its lock decides."""
    assert decide(last, sight, locked_by_another) == decision


@pytest.mark.parametrize(
    ("first", "looks"),
    [
        # one change of the beat is life
        *(
            (first, [(1, first, "watch"), (2, then, "refuse")])
            for first, then in ((None, 1), (0, 1), (41, 1), (3, None))
        ),
        # silence is death after the beats that may be missed
        (41, [*((second, 41, "watch") for second in range(1, 15)), (15, 41, "take")]),
        # while the waiter was paused, it heard nothing
        (None, [(3600, None, "watch"), (3601, None, "watch"), (3602, 3, "refuse")]),
    ],
)
def test_life_and_silence(first, looks):
    watch = SilenceWatch(PACE, now=0.0, beats=first)
    assert [watch.look(now=second, beats=beats) for second, beats, _ in looks] == [
        decision for *_, decision in looks
    ]


def test_hang_watch_allows_known_pauses():
    """A long pause that ended well may come again and a hang may not."""
    watch = HangWatch(least=60.0)
    watch.begin(0.0)
    watch.moved(40.0)  # a step of a large model
    assert watch.limit == 200.0
    assert not watch.hung(239.0)
    assert watch.hung(241.0)
    watch = HangWatch(least=60.0)
    watch.begin(0.0)
    assert not watch.hung(60.0)
    assert watch.hung(60.1)
    watch.end()
    watch.begin(200.0)  # a new process
    assert watch.limit == 60.0
    assert watch.hung(261.0)
    watch = HangWatch(least=60.0)
    assert not watch.hung(1e9)
    watch.begin(0.0)
    watch.moved(10.0)
    watch.end()
    assert not watch.hung(1e9)
    watch.begin(1e9)  # the time between counts for nothing
    watch.moved(1e9 + 1)
    assert watch.longest == 10.0
