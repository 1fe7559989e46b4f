"""Who may write a run directory, what is a hang and what is only slow: decided without files, clocks or processes."""

from dataclasses import replace

import pytest

from evaluator.core.liveness import HangWatch, LeaseClaim, Pace, SilenceWatch, decide, this_process

CLAIM = LeaseClaim(number=7, token="t", owner=this_process(), locked=True)
PACE = Pace(beat_seconds=5.0, missed=3, look_seconds=1.0)


def test_what_is_seen_of_the_owner_decides():
    decided = {"running": "refuse", "gone": "take", "stopped": "watch", "elsewhere": "watch"}
    assert {sight: decide(CLAIM, sight, locked_by_another=False) for sight in decided} == decided


def test_a_directory_without_an_owner_is_free():
    assert decide(None, "elsewhere", locked_by_another=False) == "take"
    for sight in ("running", "gone", "stopped", "elsewhere"):
        assert decide(replace(CLAIM, released=True), sight, locked_by_another=False) == "take"


@pytest.mark.parametrize("last", [None, replace(CLAIM, released=True), CLAIM])
def test_a_lock_that_no_claim_explains_is_a_process_that_is_just_claiming(last):
    assert decide(last, "gone", locked_by_another=True) == "refuse"


def test_a_lock_that_a_stopped_process_keeps_is_in_nobodys_way():
    """That of a driver before the last one, which could not get it."""
    unlocked = replace(CLAIM, locked=False)
    assert decide(unlocked, "gone", locked_by_another=True) == "take"
    assert decide(replace(unlocked, released=True), "running", locked_by_another=True) == "take"
    assert decide(CLAIM, "stopped", locked_by_another=True) == "watch"


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
