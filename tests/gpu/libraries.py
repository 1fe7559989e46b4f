"""The first things to know on a machine: does vLLM work at all, without our code, and
where does our time go?

python -m tests.gpu.libraries imports             what vLLM imports, with seconds, and
                                                  one of its kernels
python -m tests.gpu.libraries plain               vLLM's own engine on the bundled model
python -m tests.gpu.libraries calibrate           microseconds of a launch, an operator,
                                                  copies and a graph, without an engine
python -m tests.gpu.libraries profile MODEL 100   Python's own time in the second pass
of our engine, by function, and the time of its kernels
"""

import cProfile
import importlib
import os
import pstats
import sys
import time
from collections.abc import Callable

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


def calibrate() -> None:
    """The prices of `bench host`: the host's time of each call, the device's own of
    block copies. Without a GPU, those of a CPU."""
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    wait: Callable[[], None] = torch.cuda.synchronize if on_gpu else (lambda: None)
    rows = torch.zeros(256, device=device)
    here = torch.zeros(256, pin_memory=on_gpu)

    def host(name: str, call: Callable[[], object], times: int = 1000) -> None:
        for _ in range(min(20, times)):
            call()
        wait()
        began = time.perf_counter()
        for _ in range(times):
            call()
        launched = time.perf_counter() - began
        wait()
        whole = time.perf_counter() - began
        print(
            f"{name}: {1e6 * launched / times:.1f} us of the host,"
            f" {1e6 * whole / times:.1f} us until the end",
            flush=True,
        )

    began = time.perf_counter()
    for number in range(1_000_000):
        _ = number * 2
    print(f"loop_us: {1e6 * (time.perf_counter() - began):.0f} of a million rounds")
    host("an operator", lambda: rows.add_(1))
    host("a pinned copy up", lambda: rows.copy_(here, non_blocking=True))
    host("a copy down", lambda: here.copy_(rows, non_blocking=True))
    # 28 layers, 256 blocks of 16 tokens, 8 heads of 128, keys and values
    shape = (256, 2, 16, 8, 128)
    layers = [
        torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(28)
    ]
    whole = torch.zeros(
        256, 28 * layers[0][0].numel(), dtype=torch.bfloat16, device=device
    )
    source, target = (
        torch.arange(18, device=device),
        torch.arange(40, 58, device=device),
    )

    def by_layer() -> None:
        for layer in layers:
            layer[target] = layer[source]

    def at_once() -> None:
        whole[target] = whole[source]

    host("18 blocks, layer by layer", by_layer, 50 if on_gpu else 1)
    host("18 blocks at once (BLNHC)", at_once, 50 if on_gpu else 1)
    if on_gpu:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(300):
                rows.add_(1)
        host("a graph of 300 nodes", graph.replay, 200)


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
    if not torch.cuda.is_available():
        return
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as kernels:
        began = time.perf_counter()
        side.everything()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    rows = kernels.key_averages()
    print(rows.table(sort_by="self_device_time_total", row_limit=25))
    busy = sum(row.self_device_time_total for row in rows) / 1e6
    print(f"kernels: {busy:.2f} of {seconds:.2f} s, so idle {1 - busy / seconds:.0%}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
