"""How long a pass would take at the machine's peak: operations over a measured matrix rate, bytes over a measured
bandwidth. Attention's own work is left out (a few percent at these lengths), so this is a lower bound.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

_SIZE = 1536  # of the square matrices on a CPU: 3 x 9 MiB in float32
_SIZE_GPU = 8192
_REPEATS = 5


def measure(dtype_name: str) -> dict[str, float]:
    """The best of several: floating-point operations per second of a square matrix product, and bytes per second read
    and written by a copy, on the device and in the dtype that the engine uses."""
    import torch

    from pruning.model import onednn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = _SIZE_GPU if device.type == "cuda" else _SIZE
    dtype = getattr(torch, dtype_name)
    one, other = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source = torch.zeros(2**28 if device.type == "cuda" else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def best(action: Any) -> float:
        seconds = []
        for _ in range(_REPEATS + 1):
            started = time.perf_counter()
            action()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
        return min(seconds[1:])

    ways = [lambda: one @ other]
    if device.type == "cpu" and dtype == torch.float32 and onednn.available():  # torch's own choice may be MKL's AVX2
        ways.append(lambda: onednn.times_transposed(one, other))
    with torch.inference_mode():
        return {
            "flops_per_second": 2 * size**3 / min(best(way) for way in ways),
            "bytes_per_second": 2 * source.numel() / best(lambda: target.copy_(source)),
        }


def work(model: Path, forwards: int, distributions: int, steps: int) -> dict[str, float]:
    """The fewest floating-point operations and bytes that `forwards` tokens need.

    All tokens go through the layers, `distributions` of them through the output head; every weight is read once in each
    of `steps` steps, each of which waits for the one before.
    """
    from evaluator.checkpoints.blueprint import read_blueprint

    blueprint = read_blueprint(model)
    tied = "lm_head.weight" not in blueprint.tensors
    layers = head = total = 0
    for name, (kind, shape) in blueprint.tensors.items():
        elements = 1
        for side in shape:
            elements *= side
        table = "embed_tokens" in name
        if "lm_head" in name or (table and tied):
            head = elements
        elif len(shape) == 2 and not table:
            layers += elements
        if not table or tied:
            total += elements * {"F32": 4, "F64": 8}.get(kind, 2)
    return {"flops": 2.0 * (layers * forwards + head * distributions), "bytes": float(total * steps)}


def share_of_wall(needed: dict[str, float], machine: dict[str, float], seconds: float) -> dict[str, float]:
    """The seconds that the measured peaks need, the larger of the two bounds, and their share of the wall time."""
    compute = needed["flops"] / machine["flops_per_second"]
    memory = needed["bytes"] / machine["bytes_per_second"]
    return {
        "gflops_per_second": machine["flops_per_second"] / 1e9,
        "gbytes_per_second": machine["bytes_per_second"] / 1e9,
        "compute_bound_s": compute,
        "memory_bound_s": memory,
        "share_of_wall": max(compute, memory) / seconds,
    }
