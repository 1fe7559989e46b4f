"""The real `resurface doctor`, on whatever this machine is."""

import json

import pytest

from evaluator.engine.comparisons import of_scores
from evaluator.engine.config import EngineConfig
from launch.doctor.results import RunResult
from launch.doctor.runs import DIVIDED, Inputs, cases_for, run_apart
from launch.sweep.models import BUNDLED_MODEL
from tests.support.engines import needs_vllm, oracle_of
from tests.support.runs import finish

pytestmark = needs_vllm


@pytest.mark.more
def test_card_of_this_machine(tmp_path):
    card = tmp_path / "card.md"
    document = json.loads(finish("doctor", "--json", "--out", card).stdout)
    assert document["passed"]
    assert {"served", "by_prompt", "transformers", "pruning"} <= set(
        document["seconds"]
    )
    measured = {
        row["check"]: row for row in document["checks"] if row["status"] == "pass"
    }
    checks = {
        "scores",
        "ranks, ties",
        "greedy",
        "beams",
        "samples",
        "swap",
        "swap back",
        "two runs",
        "masks",
    }
    assert checks <= set(measured)
    assert all(row["compared"] > 0 for row in measured.values())
    text = card.read_text(encoding="utf-8")
    assert f"# doctor: {document['verdict']}" in text
    for name in measured:
        assert f"| {name} | pass |" in text
    logs = {log.stem: log.read_text() for log in (tmp_path / "card.logs").iterdir()}
    assert {"served", "by_prompt", "transformers", "pruning"} <= set(logs)
    assert "Initializing a V1 LLM engine" in logs["served"]


@pytest.mark.long
def test_two_workers_equal_transformers(tmp_path, monkeypatch):
    """The doctor asks for it on two GPUs; what it asks works."""
    # there may be fewer cores than workers
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    result = run_apart(
        DIVIDED,
        Inputs(dense=BUNDLED_MODEL, scratch=tmp_path, logs=tmp_path, dtype="float32"),
    )
    assert isinstance(result, RunResult), result
    # every matrix of both workers was compared
    assert (result.scoring, result.notes) == ("forced", ())
    oracle, asked = (
        oracle_of(BUNDLED_MODEL, EngineConfig()),
        cases_for(BUNDLED_MODEL).scores,
    )
    expected = {request.request_id: oracle.answer(request) for request in asked}
    ours = {
        name: answer
        for name, answer in result.answers["dense"].items()
        if name in expected
    }
    assert max(of_scores(ours, expected)) < 1e-3
