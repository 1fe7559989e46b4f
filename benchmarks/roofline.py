"""How long a pass would take at the machine's peak: operations over a measured
matrix rate, bytes over a measured bandwidth. The rate is the best that torch's
libraries reach now, not the processor's data sheet.

Counted are the matrix products of dense decoders, by the checkpoint's shapes, so
that grouped query heads cost what their matrices hold, and the reads of the KV
cache. Left out are attention's own products (a few percent at these lengths),
biases, norms and activations: this is a lower bound. Two things are counted too
high. In a mixture each token passes every expert, and a layer with a sliding window
reads the whole cache."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

_SIZE = 1536  # of the square matrices on a CPU: 3 x 9 MiB in float32
_SIZE_GPU = 8192
# at least, and for at least so many seconds: what else runs slows some of them down
_REPEATS = 5
_SECONDS = 0.1
_LAUNCHED = 50  # on a GPU: in a row
_SLEEP_CYCLES = 10_000_000  # about 5 ms, in which 50 products are launched
# of one input: one product in vLLM
_FUSED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The matrices that a token is multiplied by: how many there are of each shape
    (rows, columns)."""

    layers: Counter[tuple[int, int]]
    head: tuple[int, int]  # the embedding where it is tied
    others: int  # elements that are read in a step beside them: norms, biases
    cached: int = 0  # elements that a token leaves in the KV cache


def read_products(model: Path) -> Products:
    """Of a checkpoint; an untied embedding is looked up, not multiplied, and read by
    no step."""
    from evaluator.checkpoints.checkpoint import Checkpoint
    from evaluator.engine.vllm.arguments import cached_values

    checkpoint = Checkpoint(model)
    matrices: dict[str, tuple[int, int]] = {}
    head = table = (0, 0)
    others = 0
    for name, tensor in checkpoint.tensors.items():
        shape = tensor.shape
        if len(shape) != 2:
            others += prod(shape)
        elif "lm_head" in name:
            head = shape
        elif "embed" in name:
            table = shape if "embed_tokens" in name else table
        else:
            before, _, last = name.removesuffix(".weight").rpartition(".")
            first = f"{before}.{_FUSED.get(last, last)}"
            matrices[first] = (matrices.get(first, (0, 0))[0] + shape[0], shape[1])
    head, cached = head if any(head) else table, cached_values(checkpoint.settings)
    return Products(
        layers=Counter(matrices.values()), head=head, others=others, cached=cached
    )


def work(
    products: Products,
    *,
    forwards: int,
    distributions: int,
    steps: int,
    cached: int,
    element_bytes: float,
) -> dict[str, float]:
    """The fewest floating-point operations and bytes that `forwards` tokens need.

    All tokens go through the layers, `distributions` of them through the output
    head; every weight is read once in each of `steps` steps, each of which waits for
    the one before, in the engine's dtype of `element_bytes`. From the cache the keys
    and values of `cached` tokens are read."""
    layers = sum(
        rows * columns * count for (rows, columns), count in products.layers.items()
    )
    elements = layers + prod(products.head) + products.others
    flops = 2.0 * (layers * forwards + prod(products.head) * distributions)
    return {
        "flops": flops,
        "bytes": float(element_bytes * (elements * steps + products.cached * cached)),
    }


def measure(dtype_name: str) -> dict[str, float]:
    """The best of several: floating-point operations per second of a square matrix
    product, and bytes per second read and written by a copy, on the device and in
    the dtype that the engine uses. To be called in the engine's process, after it
    has set its threads: they are then ours."""
    import torch

    on_gpu = torch.cuda.is_available()
    size = _SIZE_GPU if on_gpu else _SIZE
    source = torch.zeros(
        2**28 if on_gpu else 2**26,
        dtype=torch.uint8,
        device="cuda" if on_gpu else "cpu",
    )
    target = torch.empty_like(source)
    return {
        "threads": torch.get_num_threads(),
        "element_bytes": torch.finfo(getattr(torch, dtype_name)).bits / 8,
        "flops_per_second": 2
        * size**3
        / _product_seconds(size, (size, size), dtype_name),
        "bytes_per_second": 2 * source.numel() / _best(lambda: target.copy_(source)),
    }


def share_of_wall(
    needed: dict[str, float], machine: dict[str, float], seconds: float
) -> dict[str, float]:
    """The seconds that the measured peaks need, the larger of the two bounds, and
    their share of the wall time."""
    compute = needed["flops"] / machine["flops_per_second"]
    memory = needed["bytes"] / machine["bytes_per_second"]
    return {
        "threads": machine["threads"],
        "gflops_per_second": machine["flops_per_second"] / 1e9,
        "gbytes_per_second": machine["bytes_per_second"] / 1e9,
        "compute_bound_s": compute,
        "memory_bound_s": memory,
        "share_of_wall": max(compute, memory) / seconds,
    }


def _product_seconds(count: int, shape: tuple[int, int], dtype_name: str) -> float:
    """Of `count` rows with a matrix (rows, columns), as torch computes it."""
    import torch

    device, dtype = (
        "cuda" if torch.cuda.is_available() else "cpu",
        getattr(torch, dtype_name),
    )
    inputs_TI = torch.randn(count, shape[1], device=device).to(dtype)
    weight_OI = torch.randn(*shape, device=device).to(dtype)
    return _best(lambda: torch.nn.functional.linear(inputs_TI, weight_OI))


def _best(action: Callable[[], Any]) -> float:
    """The least seconds of several, after one that does not count."""
    import torch

    on_gpu = torch.cuda.is_available()
    seconds: list[float] = []
    began = time.perf_counter()
    with torch.inference_mode():
        while len(seconds) <= _REPEATS or time.perf_counter() - began < _SECONDS:
            started = time.perf_counter()
            own = _on_the_gpu(action) if on_gpu else action()
            seconds.append(own if on_gpu else time.perf_counter() - started)
    return min(seconds[1:])


def _on_the_gpu(action: Callable[[], Any]) -> float:
    """GPU seconds for one of `_LAUNCHED` in a row; it sleeps until all are launched,
    which takes longer."""
    import torch

    cuda: Any = torch.cuda  # which has no types
    begun, ended = (cuda.Event(enable_timing=True) for _ in range(2))
    cuda._sleep(_SLEEP_CYCLES)
    begun.record()
    for _ in range(_LAUNCHED):
        action()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000 / _LAUNCHED
