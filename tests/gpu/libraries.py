"""The first things to know on a machine: does vLLM work at all, without our code, and
where does our time go?

python -m tests.gpu.libraries imports             what vLLM imports, with seconds, and
                                                  one of its kernels
python -m tests.gpu.libraries plain               vLLM's own engine on the bundled model
python -m tests.gpu.libraries profile MODEL 100   Python's own time in the second pass
of our engine, by function
"""

import cProfile
import importlib
import os
import pstats
import sys
import time

import torch

from benchmarks.serving.sides import Ours
from launch.sweep.models import BUNDLED_MODEL

_EVERYWHERE = ("vllm", "vllm.platforms", "vllm._custom_ops")
# What vLLM imports on a GPU, and a machine may lack.
_ON_A_GPU = (
    *("cuda.bindings.driver", "vllm.platforms.cuda", "vllm._C_stable_libtorch"),
    *(
        "vllm.vllm_flash_attn._vllm_fa3_C",
        "vllm.model_executor.warmup.minimax_m3_msa_warmup",
    ),
    *("vllm.v1.worker.gpu.model_runner", "evaluator.engine.vllm.v2.scores"),
)


def imports() -> None:
    """Raises what an import or the kernel raises."""
    on_gpu = torch.cuda.is_available()
    for name in (*_EVERYWHERE, *(_ON_A_GPU if on_gpu else ())):
        began = time.monotonic()
        importlib.import_module(name)
        print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    inputs_TI = torch.randn(
        64, 512, device="cuda" if on_gpu else "cpu", dtype=torch.bfloat16
    )
    normed_TI, weight_I = torch.empty_like(inputs_TI), torch.ones_like(inputs_TI[0])
    torch.ops._C.rms_norm(normed_TI, inputs_TI, weight_I, 1e-6)
    expected_TI = torch.nn.functional.rms_norm(inputs_TI.float(), (512,), eps=1e-6)
    error = (normed_TI.float() - expected_TI).abs().max().item()
    print(
        f"torch {torch.__version__}: vLLM's RMS norm differs by {error:.2g} from"
        " torch's"
    )
    if not error < 0.05:
        raise SystemExit(1)


def plain() -> None:
    """Raises what vLLM raises."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    limits = {
        "max_model_len": 512,
        "gpu_memory_utilization": 0.1,
        "kv_cache_memory_bytes": 2**30,
    }
    llm = LLM(str(BUNDLED_MODEL), enforce_eager=True, **limits)
    answer = llm.generate(
        ["Context: Karo was founded in 1701."],
        SamplingParams(temperature=0, max_tokens=16),
    )
    print(f"vLLM alone: {answer[0].outputs[0].text!r}")


def profile(model: str, items: str) -> None:
    work = {
        "model": model,
        "task": "gazetteer",
        "count": int(items),
        "kv_cache_gib": 4,
        "engine_args": {},
    }
    side = Ours(work, "full")
    side.everything()
    side.cold()
    profiler = cProfile.Profile()
    profiler.runcall(side.everything)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
