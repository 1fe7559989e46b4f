"""The least time that a pruning's matrix products need on this machine: what bounds `bench prune` from below.

It is the number of floating-point operations over the float32 rate of the best library at hand. For T calibration
tokens it counts

- in the pass that collects statistics: every matrix but the last of a layer, whose output no statistic needs;
- in the pass that propagates: every matrix but those of the last layer, whose output nobody reads;
- for SparseGPT: half of x^T x of every distinct input.

Attention, the solver and everything else that is not a matrix product are left out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path

_SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}  # reads what that one reads
_REPEATS = 8


def tokens(source: Path, passages: Path, window: int) -> int:
    """How many tokens the passages give."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    return sum(len(tokenizer(text, verbose=False)["input_ids"][:window]) for text in passages.read_text().splitlines())


def operations(source: Path, method: str, tokens: int) -> float:
    """Floating-point operations of our products, two for each multiply-add."""
    from pruning.model.checkpoint import Checkpoint

    layers: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
    for name, entry in Checkpoint(source).entries.items():
        _, found, rest = name.partition(".layers.")
        if found and len(entry.shape) == 2:
            layer, *_, module, _ = rest.split(".")
            layers[int(layer)][module] = entry.shape
    total = 0.0
    for number, matrices in layers.items():
        for module, (rows, columns) in matrices.items():
            passes = (module != "down_proj") + (number != max(layers))
            total += 2.0 * tokens * rows * columns * passes
            if method == "sparsegpt" and module not in _SAME_INPUT:
                total += tokens * columns**2
    return total


def rate(threads: int, *, on_gpu: bool = False) -> float:
    """Operations per second of a float32 product of a layer's size: the best of torch's two libraries."""
    import torch

    from pruning.model import onednn

    if on_gpu:
        from benchmarks import roofline

        return roofline.measure("float32")["flops_per_second"]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    left, right = torch.randn(1024, 1024), torch.randn(2048, 1024)
    ways = [torch.nn.functional.linear] + ([onednn.times_transposed] if onednn.available() else [])
    seconds = []
    for way in ways:
        way(left, right)
        for _ in range(_REPEATS):
            started = time.perf_counter()
            way(left, right)
            seconds.append(time.perf_counter() - started)
    torch.set_num_threads(before)
    return 2 * 1024 * 1024 * 2048 / min(seconds)
