"""What a pass says of its round, also where nobody knows how long the engine was busy."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks.serving import checkpoint_pass
from tests.support.models import save_tiny_model


@pytest.fixture
def facts(tmp_path):
    workload = tmp_path / "workload.json"
    workload.write_text(json.dumps({"model": str(save_tiny_model(tmp_path / "tiny", "qwen3")), "items": []}))
    options = argparse.Namespace(model="tiny", task="toy", items=0)

    def made(busy):
        result = {
            "seconds": 2.0,
            "split": {},
            "accounts": {
                "fewest": {"forwards": 100, "distributions": 20, "steps": 4, "cached": 900},
                "computed": 200,
                "machine": {"threads": 1, "element_bytes": 4, "flops_per_second": 1e9, "bytes_per_second": 1e9},
                "batch": {"rows": 50.0, "seconds_per_forward": 1e-4, "seconds_per_distribution": 1e-3},
            },
            "stats": {"steps": 4, "busy_seconds": busy, "idle_share": None, "waiting_share": None},
        }
        return checkpoint_pass.facts(options, workload, [result, result])

    return made


def test_the_wall_time_has_four_parts(facts):
    found = facts(1.23456)
    assert found["busy_seconds"] == 1.2346
    assert sum(found["wall_shares"].values()) == pytest.approx(1, abs=1e-3)
    assert found["above_roofline"] is False


def test_an_engine_that_does_not_know_its_time_has_no_shares(facts, capsys):
    found = facts(None)
    assert [found[name] for name in ("busy_seconds", "wall_shares", "above_roofline")] == [None] * 3
    assert found["roofline"]["share_at_this_batch"] == pytest.approx((100 * 1e-4 + 20 * 1e-3) / 2)
    assert json.dumps(found)
    assert capsys.readouterr().out == ""
