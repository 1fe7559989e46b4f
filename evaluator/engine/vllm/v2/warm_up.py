"""Top-p of the V2 model runner, compiled before the first request needs it.

On CUDA, vLLM compiles these kernels when a step first samples, and then every request waits. Its own warm-up samples
with top-k as well, which is another kernel than ours. Triton keeps compiled kernels in TRITON_CACHE_DIR.
Not yet tested on a GPU.

Replaces nothing. Calls `vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p`; reads the runner's `max_num_reqs`,
`vocab_size` and `device`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Masks the logits of a step: float32 [rows, vocabulary], top-k (None: all), top-p [rows].
Mask = Callable[[torch.Tensor, None, torch.Tensor], torch.Tensor]

_SPLIT_ROWS = 64  # up to here, vLLM splits each row among programs: the fewer rows, the more, in powers of two
_TOP_P = 0.9


def batches(most: int) -> list[int]:
    """The numbers of rows which between them need every kernel that steps of up to `most` rows need."""
    powers = [1 << power for power in range(_SPLIT_ROWS.bit_length()) if 1 << power < most]
    return [*powers, most]


def warm_top_p(runner: Any, mask: Mask | None = None) -> int:
    """Have a V2 runner's top-p compiled for each of `batches`; returns how many. Nothing is compiled on a CPU: 0."""
    if runner.device.type != "cuda":
        return 0
    masks = mask or _own()
    rows = batches(runner.max_num_reqs)
    # As the sampler's own: float32, contiguous. A kernel writes into its rows.
    logits_RV = torch.zeros(rows[-1], runner.vocab_size, device=runner.device)
    top_p_R = torch.full((rows[-1],), _TOP_P, device=runner.device)
    for count in rows:
        masks(logits_RV[:count], None, top_p_R[:count])
    return len(rows)


def _own() -> Mask:
    from vllm.v1.sample.ops import topk_topp_sampler

    own: Mask = topk_topp_sampler.apply_top_k_top_p
    return own
