"""The wall time of a pass in four parts."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.checkpoint_pass import facts, wall_time
from tests.support.models import save_tiny_model


def test_the_parts_by_hand():
    # 8 of 10 s in the engine for 400 tokens, 300 of them needed: 6 s, of which the peak
    # needs 1.5.
    parts = {"roofline": 1.5, "unneeded_tokens": 2.0, "engine": 4.5, "driver": 2.0}
    assert wall_time(wall=10.0, busy=8.0, roofline=1.5, fewest=300, computed=400) == (
        parts,
        False,
    )


@pytest.mark.parametrize("roofline", [6.5, 1000.0])
def test_a_roofline_that_the_engine_beat_is_cut_to_what_it_took_and_said_to_be_wrong(
    roofline,
):
    parts = {"roofline": 6.0, "unneeded_tokens": 2.0, "engine": 0.0, "driver": 2.0}
    assert wall_time(
        wall=10.0, busy=8.0, roofline=roofline, fewest=300, computed=400
    ) == (parts, True)


seconds = st.floats(0.001, 1e4)


@given(
    wall=seconds,
    busy=seconds,
    roofline=seconds,
    fewest=st.integers(1, 10**6),
    computed=st.integers(1, 10**6),
)
def test_the_parts_sum_to_the_wall_time_and_none_is_negative(
    wall, busy, roofline, fewest, computed
):
    parts, _ = wall_time(
        wall=wall, busy=busy, roofline=roofline, fewest=fewest, computed=computed
    )
    assert sum(parts.values()) == pytest.approx(wall)
    assert min(parts.values()) >= 0


def test_the_wall_time_has_shares_where_the_engine_knows_its_time(tmp_path, capsys):
    workload = tmp_path / "workload.json"
    workload.write_text(
        json.dumps(
            {"model": str(save_tiny_model(tmp_path / "tiny", "qwen3")), "items": []}
        )
    )

    accounts = {
        "fewest": {"forwards": 100, "distributions": 20, "steps": 4, "cached": 900},
        "computed": 200,
        "machine": {
            "threads": 1,
            "element_bytes": 4,
            "flops_per_second": 1e9,
            "bytes_per_second": 1e9,
        },
    }

    def told(busy):
        result = {
            "seconds": 2.0,
            "split": {},
            "stats": {
                "steps": 4,
                "busy_seconds": busy,
                "idle_share": None,
                "waiting_share": None,
            },
        }
        results = [result, result | {"seconds": 3.0}, result, result | {"seconds": 1.0}]
        return facts(
            workload, SimpleNamespace(results=results, facts={2: accounts}.__getitem__)
        )

    found = told(1.23456)
    assert (found["busy_seconds"], found["above_roofline"]) == (1.2346, False)
    assert sum(found["wall_shares"].values()) == pytest.approx(1, abs=1e-3)
    capsys.readouterr()
    found = told(None)
    assert [
        found[name] for name in ("busy_seconds", "wall_shares", "above_roofline")
    ] == [None] * 3
    assert found["roofline"]["share_of_wall"] > 0
    assert json.dumps(found)
    assert capsys.readouterr().out == ""
