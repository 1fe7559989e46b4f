"""The steps of a night on a GPU. The cheapest decisive ones come first: imports, one engine, then everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.processes import module_command

SCRATCH = "night.tmp"  # a folder beside the cards, removed at the end
# What each pass changes in our engine's settings (EngineConfig). The others are compared with the first; the last runs
# late.
VARIANTS: Mapping[str, dict[str, Any]] = {
    "pass": {},
    "pass-compile": {"compile": True},
    "pass-piecewise": {"cuda_graphs": "piecewise"},
    "pass-decode": {"cuda_graphs": "decode"},
    "pass-deterministic": {"deterministic": True},
}
# The first engines on a GPU, a test each.
TESTS: Mapping[str, str] = {
    "test-eager": "test_scores_and_swaps_agree_with_the_oracle[qwen3-bfloat16-False]",
    "test-graphs": "test_scores_and_swaps_agree_with_the_oracle[qwen3-bfloat16-full]",
    "test-two-runs": "test_two_runs_of_the_same_requests_do_not_mix",
}
_EVERYWHERE = ("torch", "vllm", "ray")
# What vLLM imports on a GPU, and a machine may lack.
_ON_A_GPU = (
    *("cuda.bindings.driver", "vllm._C_stable_libtorch", "vllm.vllm_flash_attn._vllm_fa3_C"),
    "vllm.model_executor.warmup.minimax_m3_msa_warmup",
)
_IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]; import torch; print({})"
# Triton's kernels, to be carried to the next machine: an archive of at most 16 MiB.
_PACK = """
mkdir -p "$TRITON_CACHE_DIR" && tar -C "$TRITON_CACHE_DIR" -czf "$0" . || exit
size=$(stat -c %s "$0"); echo "$size bytes"
test "$size" -le 16777216 || { rm "$0"; echo "$size bytes are more than 16 MiB: the archive is removed"; exit 1; }
"""
_PATIENCE = {"1.7b": 2, "8b": 4}  # how much longer the time limits of larger models are
_SHARE = {"gpu_memory_utilization": 0.42}  # for the engine of either side
# What a user of vLLM's offline interface has on a GPU, with the sizes that ours chooses.
_THEIRS = {"dtype": "bfloat16", "enforce_eager": False, "block_size": None, "max_num_seqs": 256, **_SHARE} | {
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 16_384,
}


@dataclass(frozen=True, slots=True)
class Step:
    """One process of the night, with its time limit. `needs`: a "gpu", and the "model" that step `model` writes."""

    name: str
    seconds: int
    command: list[str]
    needs: tuple[str, ...] = ()


def steps(out: Path, *, shape: str, tiny: bool, gpu: bool) -> list[Step]:
    """The whole list; its files lie in `out`. `tiny`: the smallest counts. Without a `gpu`, all suits a CPU."""
    model = out / SCRATCH / "model"
    memory = "torch.accelerator.get_memory_info()" if gpu else "torch.__version__"
    imports = [sys.executable, "-P", "-c", _IMPORT.format(memory), *_EVERYWHERE, *(_ON_A_GPU if gpu else ())]
    pace = ("--rows", 16, "--items", 9) if tiny else ("--rows", 256, "--items", 300)
    texts = ("--samples", 2, "--tokens", 64) if tiny else ("--samples", 128, "--tokens", 2048)

    def serving(name: str, rounds: int, *options: object, **ours: Any) -> list[str]:
        engine = json.dumps((_SHARE if gpu else {}) | ours)
        common = ("--model", model, "--rounds", 1 if tiny else rounds, "--engine-args", engine)
        return module_command(f"benchmarks.serving.{name}", *common, *options)

    def both(items: int) -> tuple[object, ...]:
        return "--items", 2 if tiny else items, "--llm-args", json.dumps(_THEIRS if gpu else {})

    def prune() -> list[str]:
        sides = ("--model", model, "--only", "gpu" if gpu else "ours", "--repeat", 1)
        return module_command("benchmarks.pruning.prune", *sides, *texts)

    passes = [
        Step(name, 180, serving("checkpoint_pass", 1, *both(90), **ours), ("model", "gpu") if ours else ("model",))
        for name, ours in VARIANTS.items()
    ]
    one_test = "tests/gpu/test_engine_gpu.py::{}".format
    listed = [
        Step("imports", 60, imports),
        *(Step(name, 120, module_command("tests.gpu", one_test(test)), ("gpu",)) for name, test in TESTS.items()),
        Step("doctor", 420, module_command("launch.commands.cli", "doctor", "--json", "--out", out / "doctor.md")),
        Step("pace", 120, module_command("benchmarks.driver", "--pace", 4, *pace)),
        Step("model", 300, module_command("benchmarks.pruning.synthetic", shape, model)),
        *passes[:-1],
        Step("prune", 180, prune(), ("model",)),
        Step("tests", 900, module_command("tests.gpu"), ("gpu",)),
        Step("kernels", 120, ["sh", "-c", _PACK, str(out / "kernels.tar.gz")]),
        passes[-1],
        Step("score", 300, serving("score", 3, *both(200)), ("model",)),
        Step("swap", 300, serving("swap", 2), ("model",)),
    ]
    patience = _PATIENCE.get(shape, 1) if gpu else 10
    return [replace(step, seconds=patience * step.seconds) for step in listed]
