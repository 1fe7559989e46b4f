"""The head of the page: what was asked and evaluated, verdicts, and the order of the
headline's rows."""

from evaluator.deciding.decision import Verdict, worst_first
from evaluator.report.page import evaluated, facts

RUN = {
    "measured": "2026-11-29T01:30+00:00",
    "planned": {"dense": {"t": 24}, "w": {"t": 24}},
    "identity": {
        "tasks": {"dense": {"t": "0123456789abcdef"}},
        "bases": {"dense": None, "w": "dense"},
        "engine": {"kind": "vllm", "dtype": "auto"},
    },
    "engine_stats": [{"setup": {"dtype": "float32"}}, {"setup": {"dtype": "float32"}}],
    "provenance": {"versions": {"resurface": "0.1.0", "vllm": None}},
    "checkpoints": [
        {"name": "dense", "path": "models/<b>", "weights_digest": "f" * 64},
        {"name": "w", "method": "wanda", "pattern": "2:4", "sparsity": 0.5},
    ],
}


def test_head_names_what_run_json_states():
    assert facts(RUN) == [
        "t: 24 items (digest 0123456789ab)",
        "vllm float32",
        "2026-11-29T01:30+00:00",
        "resurface 0.1.0",
    ]
    dense, wanda = evaluated(RUN)
    assert dense["path"] == "models/<b>"
    assert (dense["scheme"], dense["digest"]) == ("base", "f" * 12)
    assert (wanda["scheme"], wanda["digest"]) == ("wanda 2:4 0.5, of dense", "")
    assert facts({}) == evaluated({}) == []


def test_a_control_is_no_base():
    names = ("dense~order", "w~engine-torch")
    rows = [{"name": name, "method": "wanda"} for name in names]
    assert [each["scheme"] for each in evaluated({"checkpoints": rows})] == [
        "control (order) of dense",
        "control (engine:torch) of w",
    ]


def test_worst_verdicts_come_first():
    outcomes = ("PASS", "BLOCK", "WARN", "ANOMALOUS", "BLOCK")
    verdicts = [
        Verdict(task="t", checkpoint=str(at), base="b", outcome=outcome)
        for at, outcome in enumerate(outcomes)
    ]
    ordered = [each.checkpoint for each in worst_first(verdicts)]
    assert ordered == ["1", "4", "3", "2", "0"]
