"""How long the token forwards of a pass would take at the machine's peak: operations
over a measured matrix rate, bytes over a measured bandwidth. The rate is the best that
torch's libraries reach now, not the processor's data sheet.

Counted are two operations for each weight and token, and one reading of all weights in
each step. Attention's own products and the KV cache are left out (a few percent at
these lengths), so this is a lower bound. Each token passes every expert of a
mixture, and an untied embedding: both are too much.
"""

from math import prod
from pathlib import Path
from typing import Any

_SECONDS = 0.2  # of each measurement
# Rows of the square matrices, and bytes of the copy: beyond the caches.
_ON_CPU, _ON_GPU = (1536, 2**26), (8192, 2**28)


def measure(dtype_name: str) -> dict[str, float]:
    """The best of several: floating-point operations per second of a square matrix
    product, and bytes per second read and written by a copy, on the device and in
    the dtype that the engine uses."""
    import torch
    from torch.utils.benchmark import Timer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size, copied = _ON_GPU if device == "cuda" else _ON_CPU
    dtype = getattr(torch, dtype_name)
    names: dict[str, Any] = {
        "left": torch.randn(size, size, device=device).to(dtype),
        "right": torch.randn(size, size, device=device).to(dtype),
        "source": torch.zeros(copied, dtype=torch.uint8, device=device),
        "target": torch.zeros(copied, dtype=torch.uint8, device=device),
    }
    threads = torch.get_num_threads()

    def seconds(statement: str) -> float:
        timer: Any = Timer(statement, globals=names, num_threads=threads)
        return float(min(timer.blocked_autorange(min_run_time=_SECONDS).times))

    with torch.inference_mode():
        return {
            "threads": threads,
            "element_bytes": dtype.itemsize,
            "flops_per_second": 2 * size**3 / seconds("left @ right.T"),
            "bytes_per_second": 2 * copied / seconds("target.copy_(source)"),
        }


def bounds(
    model: Path, machine: dict[str, float], forwards: int, steps: int, seconds: float
) -> dict[str, float]:
    """The seconds that `forwards` tokens in `steps` steps need at the measured peaks,
    and the larger one's share of the wall time, `seconds`."""
    from evaluator.checkpoints.checkpoint import Checkpoint

    tensors = Checkpoint(model).tensors.values()
    weights = sum(prod(tensor.shape) for tensor in tensors)
    compute = 2 * weights * forwards / machine["flops_per_second"]
    read = weights * machine["element_bytes"] * steps
    memory = read / machine["bytes_per_second"]
    return {
        "threads": machine["threads"],
        "gflops_per_second": machine["flops_per_second"] / 1e9,
        "gbytes_per_second": machine["bytes_per_second"] / 1e9,
        "compute_bound_s": compute,
        "memory_bound_s": memory,
        "share_of_wall": max(compute, memory) / seconds,
    }
