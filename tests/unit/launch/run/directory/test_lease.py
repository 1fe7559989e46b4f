"""Who may write a run directory, decided without files, clocks or processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.run.directory.lease import Claim, Pace, Watch, decide
from pruning.output.owner import this_process

CLAIM = Claim(number=7, token="t", owner=this_process(), locked=True)
PACE = Pace(beat_seconds=5.0, missed=3, look_seconds=1.0)


@pytest.mark.parametrize(
    ("sight", "decision"), [("running", "refuse"), ("gone", "take"), ("stopped", "watch"), ("elsewhere", "watch")]
)
def test_what_is_seen_of_the_owner_decides(sight, decision) -> None:
    assert decide(CLAIM, sight, locked_by_another=False) == decision


def test_a_directory_without_an_owner_is_free() -> None:
    assert decide(None, "elsewhere", locked_by_another=False) == "take"
    for sight in ("running", "gone", "stopped", "elsewhere"):
        assert decide(replace(CLAIM, released=True), sight, locked_by_another=False) == "take"


@pytest.mark.parametrize("last", [None, replace(CLAIM, released=True), CLAIM])
def test_a_lock_that_no_claim_explains_is_a_process_that_is_just_claiming(last) -> None:
    assert decide(last, "gone", locked_by_another=True) == "refuse"


def test_a_lock_that_a_stopped_process_keeps_is_in_nobodys_way() -> None:
    """That of a driver before the last one, which could not get it."""
    unlocked = replace(CLAIM, locked=False)
    assert decide(unlocked, "gone", locked_by_another=True) == "take"
    assert decide(replace(unlocked, released=True), "running", locked_by_another=True) == "take"
    assert decide(CLAIM, "stopped", locked_by_another=True) == "watch"


@pytest.mark.parametrize("first", [None, 0, 41])
def test_one_beat_is_life(first) -> None:
    watch = Watch(PACE, now=100.0, beats=first)
    assert watch.look(now=101.0, beats=first) == "watch"
    assert watch.look(now=102.0, beats=1) == "refuse"


def test_silence_is_death_after_the_beats_that_may_be_missed() -> None:
    watch = Watch(PACE, now=100.0, beats=41)
    decisions = [watch.look(now=100.0 + second, beats=41) for second in range(1, 16)]
    assert decisions == ["watch"] * 14 + ["take"]


def test_while_the_waiter_was_paused_it_heard_nothing() -> None:
    watch = Watch(PACE, now=0.0, beats=None)
    assert watch.look(now=3600.0, beats=None) == "watch"
    assert watch.look(now=3601.0, beats=None) == "watch"
    assert watch.look(now=3602.0, beats=3) == "refuse"


def test_a_beat_that_cannot_be_read_any_more_is_a_change() -> None:
    """Then somebody else has taken the directory, and removed it."""
    assert Watch(PACE, now=0.0, beats=3).look(now=1.0, beats=None) == "refuse"
