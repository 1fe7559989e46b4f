"""What is a hang and what is only slow: decided without clocks or processes."""

from evaluator.core.liveness import HangWatch


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
