"""What is a hang, and what is only slow."""

from __future__ import annotations

from launch.run.decide.hangs import Watch


def test_silence_is_a_hang_after_the_least_time() -> None:
    watch = Watch(least=60.0)
    watch.begin(1000.0)
    assert not watch.hung(1060.0)
    assert watch.hung(1060.1)
    assert watch.silence(1060.1) > 60.0


def test_every_sign_of_progress_begins_the_time_anew() -> None:
    watch = Watch(least=60.0)
    watch.begin(0.0)
    for now in (50.0, 100.0, 150.0):
        watch.moved(now)
    assert not watch.hung(201.0)


def test_what_ended_well_after_a_long_pause_may_take_long_again() -> None:
    watch = Watch(least=60.0)
    watch.begin(0.0)
    watch.moved(40.0)  # a step of a large model
    assert watch.limit == 200.0
    assert not watch.hung(239.0)
    assert watch.hung(241.0)


def test_a_hang_does_not_make_the_next_one_longer() -> None:
    watch = Watch(least=60.0)
    watch.begin(0.0)
    assert watch.hung(100.0)
    watch.end()
    watch.begin(200.0)  # a new process
    assert watch.limit == 60.0
    assert watch.hung(261.0)


def test_where_nothing_is_going_on_nothing_hangs() -> None:
    watch = Watch(least=60.0)
    assert not watch.hung(1e9)
    watch.begin(0.0)
    watch.moved(10.0)
    watch.end()
    assert not watch.hung(1e9)
    watch.begin(1e9)  # the time between counts for nothing
    watch.moved(1e9 + 1)
    assert watch.longest == 10.0
