"""Where the time of an engine goes, with clocks whose times the test sets."""

from __future__ import annotations

import pytest

from evaluator.engine.vllm.counters import Counters


def test_time_between_steps_waits_or_idles(monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    counters = Counters()
    for begin, end, was_empty in (
        (10, 11, None),
        (13, 14, False),
        (18, 20, True),
        (50, 51, None),  # nothing counts between two runs
    ):
        if was_empty is None:
            counters.begin_run()
        now = begin
        with counters.step(was_empty=bool(was_empty)):
            now = end
    stats = counters.stats()
    assert (stats.steps, stats.busy_seconds) == (4, 5)
    assert (stats.waiting_seconds, stats.idle_seconds) == (2, 4)
    assert stats.shares() == {"idle_share": 4 / 11, "waiting_share": 2 / 11}
    with pytest.raises(RuntimeError), counters.step(was_empty=False):
        raise RuntimeError
    assert counters.stats().steps == 4
