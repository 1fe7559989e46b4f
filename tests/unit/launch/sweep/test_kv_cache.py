"""`kv_cache`: the variants of a sweep, who serves them, and what is refused."""

from pathlib import Path

import pytest

from evaluator.engine.vllm import arguments, engine
from launch.run.decide.assignments import distance
from launch.sweep.config import load_sweep
from tests.support.board import make_assignment
from tests.support.sweeps import expanded, refused

MAIN = {
    "models": {"dense": "bundled"},
    "prune": [{"method": "magnitude", "sparsity": 0.5}],
    "compress": [{"checkpoint": "there", "label": "given"}],
    "tasks": [{"task": "gazetteer", "items": 4, "probes": ["greedy"]}],
}
PLAIN = ["dense", "magnitude-0.5", "given"]


def test_variant_shares_its_files():
    made = expanded(MAIN | {"kv_cache": ["auto", "fp8"]})
    assert sorted(made) == sorted([*PLAIN, *(f"{name}-kv-fp8" for name in PLAIN)])
    for name in PLAIN:
        own, variant = made[name], made[f"{name}-kv-fp8"]
        assert (variant.base, variant.path, variant.after, variant.kv_cache) == (
            "dense",
            own.path,
            name,
            "fp8",
        )
        assert variant.tasks == own.tasks != {}
        assert not variant.is_made  # once is enough


def test_without_auto_only_bases_have_it():
    made = expanded(MAIN | {"kv_cache": "fp8_e5m2"})
    assert {name for name, job in made.items() if job.tasks} == {
        "dense",
        *(f"{name}-kv-fp8_e5m2" for name in PLAIN),
    }
    assert made["magnitude-0.5"].is_made  # for its variant


def test_engine_keeps_its_cache():
    assignment = make_assignment("dense", 1)
    variant = assignment.checkpoint.with_cache("dense-kv-fp8", "fp8")
    assert (variant.method, variant.pattern) == ("kv_cache", "kv fp8")
    assert distance(variant, *assignment.checkpoint.engine_keys) == 2


@pytest.mark.parametrize(
    ("kind", "avx512", "value", "known"),
    [
        ("vllm", True, "nvfp4", "auto, fp8, fp8_e4m3, fp8_e5m2"),
        # vLLM's CPU build takes it and is wrong
        ("vllm", False, "fp8", "auto"),
    ],
)
def test_unserved_cache_is_refused(
    tmp_path: Path, monkeypatch, kind, avx512, value, known
):
    monkeypatch.setattr(engine, "serves_cpus", lambda: True)
    monkeypatch.setattr(
        arguments, "instruction_sets", lambda: ("avx512f",) if avx512 else ()
    )
    told = f"{value!r}: engine {kind} supports {known} here"
    file = tmp_path / "s.yaml"
    file.write_text(
        "include: [{models: {a: bundled}, tasks: [{task: gazetteer}], kv_cache:"
        f" {value}}}]\nengine: {{kind: {kind}}}\n",
        encoding="utf-8",
    )
    assert refused(load_sweep, file) == f"{file}: kv_cache: {told}"
