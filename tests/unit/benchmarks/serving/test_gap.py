"""The wall time of a pass in four parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.checkpoint_pass import wall_time


def test_the_parts_by_hand():
    # 8 of 10 s in the engine for 400 tokens, 300 of them needed: 6 s, of which the peak needs 1.5.
    spent = wall_time(wall=10.0, busy=8.0, roofline=1.5, fewest=300, computed=400)
    assert (spent.roofline, spent.unneeded_tokens, spent.engine, spent.driver) == (1.5, 2.0, 4.5, 2.0)
    assert not spent.above_roofline
    assert spent.shares() == {"roofline": 0.15, "unneeded_tokens": 0.2, "engine": 0.45, "driver": 0.2}
    assert spent.lines() == [
        "our wall time, one round of 10.000 s:",
        "  15.0 %  the fewest tokens at the machine's measured peak",
        "  20.0 %  tokens that need not have been computed",
        "  45.0 %  the engine, slower than the peak on those that must",
        "  20.0 %  the driver: all that is no engine step (waiting, tokens, writing)",
    ]


@pytest.mark.parametrize("roofline", [6.5, 9.0, 1000.0])
def test_a_roofline_that_the_engine_beat_is_cut_to_what_it_took_and_said_to_be_wrong(roofline):
    spent = wall_time(wall=10.0, busy=8.0, roofline=roofline, fewest=300, computed=400)
    assert (spent.roofline, spent.unneeded_tokens, spent.engine, spent.driver) == (6.0, 2.0, 0.0, 2.0)
    assert spent.above_roofline
    assert "measured too low" in spent.lines()[-1]


def test_an_engine_that_computed_no_more_than_the_fewest_has_nothing_to_spare():
    assert wall_time(wall=3.0, busy=2.0, roofline=1.0, fewest=7, computed=7).unneeded_tokens == 0
    assert wall_time(wall=3.0, busy=2.0, roofline=1.0, fewest=0, computed=0).unneeded_tokens == 0


seconds = st.floats(0.001, 1e4)


@given(wall=seconds, busy=seconds, roofline=seconds, fewest=st.integers(1, 10**6), computed=st.integers(1, 10**6))
def test_the_parts_sum_to_the_wall_time_and_none_is_negative(wall, busy, roofline, fewest, computed):
    spent = wall_time(wall=wall, busy=busy, roofline=roofline, fewest=fewest, computed=computed)
    parts = (spent.roofline, spent.unneeded_tokens, spent.engine, spent.driver)
    assert sum(parts) == pytest.approx(wall)
    assert min(parts) >= 0
    assert sum(spent.shares().values()) == pytest.approx(1, abs=2.1e-4)  # each is rounded
    assert sum(parts[1:]) == pytest.approx(wall - spent.roofline, abs=1e-9 * wall)
