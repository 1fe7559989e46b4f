"""What the sides of a pass are made with, which of them run, and what is written of
their rounds."""

import argparse

import pytest

from benchmarks.serving import launching as sides
from benchmarks.serving.__main__ import chosen
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from launch.sweep.models import BUNDLED_MODEL

WORKLOAD = {
    "model": str(BUNDLED_MODEL),
    "kv_cache_gib": 4,
    "engine_args": {"max_num_seqs": 16},
    "llm_args": {"seed": 3},
}


def options(names, **engine_args):
    return argparse.Namespace(sides=names, engine_args=engine_args)


@pytest.mark.parametrize("cpu", [True, False])
def test_caches_have_one_size(monkeypatch, cpu):
    monkeypatch.setattr(sides, "serves_cpus", lambda: cpu)
    for side in sides.OURS:
        config = EngineConfig(**sides.engine_settings(WORKLOAD, side))
        assert (config.kv_cache_gib, config.max_num_seqs) == (4, 16)
        assert config.deterministic == (side == "deterministic" and not cpu)
    for side in sides.THEIRS:
        arguments = sides.llm_arguments(WORKLOAD, side)
        assert arguments["kv_cache_memory_bytes"] == 4 * 2**30
        assert (arguments["max_num_seqs"], arguments["seed"]) == (16, 3)
        graphs = arguments.get("compilation_config", {}).get("cudagraph_mode")
        assert graphs == (
            "FULL_AND_PIECEWISE" if side == "theirs" and not cpu else None
        )
        assert arguments.get("enforce_eager", False) is cpu


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("fill", "did you mean 'full'"),
        ("ours,full", "cuda_graphs: side full of --sides sets"),
    ],
)
def test_wrong_sides_are_refused(names, said):
    with pytest.raises(InputError, match=said):
        chosen(options(names, cuda_graphs="decode"))
