"""Which sides the serving benchmarks have, and how the process of one is started."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from benchmarks.harness import Child, environment, module_command
from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.core.errors import Document, Json
from evaluator.engine.vllm.start import serves_cpus

WIDTH, TOKENS, SAMPLES, TOP_P = 5, 32, 10, 0.9
_MAX_MODEL_LEN = 2048
_ROWS = 128  # of a step; the product's default on a CPU
# Our sides by name, with the engine's settings on a GPU. On a CPU all are alike.
OURS: Mapping[str, Document] = {
    "ours": {},
    "full": {"cuda_graphs": "full"},
    "piecewise": {"cuda_graphs": "piecewise"},
    "decode": {"cuda_graphs": "decode"},
    "eager": {"cuda_graphs": False},
    "deterministic": {"deterministic": True},
    "compile": {"compile": True},
}
# The others, with arguments of `vllm.LLM` on a GPU. `theirs` has all graphs that vLLM
# (0.32) computes right without torch.compile: in those of mixed steps ("FULL"), narrow
# heads give noise (evaluator/engine/vllm/v2/schedules.py).
THEIRS: Mapping[str, Document] = {
    "theirs": {
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE"}
    },
    "theirs-compiled": {},
}
_GPU = {"gpu_memory_utilization": 0.1, "max_num_seqs": 256}  # a cache's size is given

Work = Literal["score", "beam", "everything"]


def start(side: str, work: Work, workload: Path, log: Path | None = None) -> Child:
    """A side's process, which starts its engine."""
    command = module_command("benchmarks.serving.sides", side, work, workload)
    env = environment(HF_HUB_OFFLINE="1")
    return Child(f"{side}, {work}", command, env=env, log=log)


def _positions(workload: Document) -> int:
    settings = workload.get("settings", {})
    context = int(settings.get("context_tokens", 0))
    return _MAX_MODEL_LEN + context + int(settings.get("thought_limit", 0))


def engine_settings(workload: Document, side: str) -> Json:
    """Of our engine: those of the device, then the user's."""
    device = {} if serves_cpus() else {**_GPU, **OURS[side]}
    return {
        "max_model_len": _positions(workload),
        "kv_cache_gib": workload["kv_cache_gib"],
        **device,
        **workload["engine_args"],
    }


def llm_arguments(workload: Document, side: str = "theirs") -> Json:
    """What `vllm.LLM` is made with on the other side: what ours uses where it helps
    them too (dtype, block size, batch size, the size of the cache, no statistics),
    then the user's options."""
    device: Json = {
        "dtype": "float32",
        "block_size": 32,
        "enforce_eager": True,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": 4096,
        "max_num_seqs": _ROWS,
    }
    if not serves_cpus():
        # "auto" computes float32 in bfloat16
        stored = Checkpoint(Path(workload["model"])).dtype
        dtype = "float32" if stored == "float32" else "auto"
        device = {**_GPU, **THEIRS[side]}
        device |= {"dtype": dtype, "max_num_batched_tokens": 16_384}
    rows = workload["engine_args"].get("max_num_seqs", device["max_num_seqs"])
    return {
        **device,
        "max_model_len": _positions(workload),
        "max_num_seqs": int(rows),
        "kv_cache_memory_bytes": workload["kv_cache_gib"] << 30,
        "disable_log_stats": True,
        "max_logprobs": 64,
        **workload["llm_args"],
    }
