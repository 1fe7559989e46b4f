"""Who may write a run directory, what is a hang and what is only slow: decided without files, clocks or processes."""

from dataclasses import replace

import pytest

from evaluator.core.liveness import HangWatch, LeaseClaim, Pace, SilenceWatch, decide, this_process

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
        # a stopped process keeps that of a driver before the last one, which could not get it
        (UNLOCKED, "gone", True, "take"),
        (replace(UNLOCKED, released=True), "running", True, "take"),
        (CLAIM, "stopped", True, "watch"),
    ],
)
def test_what_is_seen_of_the_owner_and_its_lock_decides(last, sight, locked_by_another, decision):
    assert decide(last, sight, locked_by_another) == decision


@pytest.mark.parametrize(("first", "then"), [(None, 1), (0, 1), (41, 1), (3, None)])
def test_one_change_of_the_beat_is_life(first, then):
    watch = SilenceWatch(PACE, now=100.0, beats=first)
    assert watch.look(now=101.0, beats=first) == "watch"
    assert watch.look(now=102.0, beats=then) == "refuse"


def test_silence_is_death_after_the_beats_that_may_be_missed():
    watch = SilenceWatch(PACE, now=100.0, beats=41)
    decisions = [watch.look(now=100.0 + second, beats=41) for second in range(1, 16)]
    assert decisions == ["watch"] * 14 + ["take"]


def test_while_the_waiter_was_paused_it_heard_nothing():
    watch = SilenceWatch(PACE, now=0.0, beats=None)
    assert watch.look(now=3600.0, beats=None) == "watch"
    assert watch.look(now=3601.0, beats=None) == "watch"
    assert watch.look(now=3602.0, beats=3) == "refuse"


def test_what_ended_well_after_a_long_pause_may_take_long_again():
    watch = HangWatch(least=60.0)
    watch.begin(0.0)
    watch.moved(40.0)  # a step of a large model
    assert watch.limit == 200.0
    assert not watch.hung(239.0)
    assert watch.hung(241.0)


def test_a_hang_does_not_make_the_next_one_longer():
    watch = HangWatch(least=60.0)
    watch.begin(0.0)
    assert not watch.hung(60.0)
    assert watch.hung(60.1)
    watch.end()
    watch.begin(200.0)  # a new process
    assert watch.limit == 60.0
    assert watch.hung(261.0)


def test_where_nothing_is_going_on_nothing_hangs():
    watch = HangWatch(least=60.0)
    assert not watch.hung(1e9)
    watch.begin(0.0)
    watch.moved(10.0)
    watch.end()
    assert not watch.hung(1e9)
    watch.begin(1e9)  # the time between counts for nothing
    watch.moved(1e9 + 1)
    assert watch.longest == 10.0
