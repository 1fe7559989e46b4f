"""Triton kernels on vLLM's V2 model runner: strict ranks, and top-p that is compiled
before the first request.

A token's rank is 1 + the number of tokens that are likelier. vLLM's own kernel counts
the tokens that are at least as likely. Ties are common in bfloat16, and there the two
differ. Our kernel has the same parameters and takes its place. vLLM calls it for
sampled tokens and for those of prompts.

On CUDA, vLLM compiles its top-p kernels when a step first samples, and then every
request waits. Its own warm-up samples with top-k as well, which is another kernel than
ours. Triton keeps compiled kernels in TRITON_CACHE_DIR.

Replaces `vllm.v1.worker.gpu.sample.logprob._ranks_kernel`. Calls
`vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p`; reads the runner's
`max_num_reqs`, `vocab_size` and `device`.
"""

# ruff: noqa: ANN001, ANN201  (Triton resolves annotations when it compiles, and supports only its own)

from collections.abc import Callable
from typing import Any

import torch
from vllm.triton_utils import tl, triton

_BLOCK = 8192  # as vLLM calls it
# Masks the logits of a step: float32 [rows, vocabulary], top-k (None: all), top-p
# [rows].
Mask = Callable[[torch.Tensor, None, torch.Tensor], torch.Tensor]

# up to here, vLLM splits each row among programs: the fewer rows, the more, in powers
# of two
_SPLIT_ROWS = 64
_TOP_P = 0.9


@triton.jit  # type: ignore[untyped-decorator]
def strict_ranks_kernel(  # type: ignore[no-untyped-def]
    output_ptr,
    logits_ptr,
    logits_stride,
    token_ids_ptr,
    vocab_size,
    BLOCK_SIZE: tl.constexpr,
):
    """One program per row. It compares float32: Triton's interpreter would compare
    the bits of bfloat16."""
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    # The row after a prompt has no token yet. Its token id can be any number, and
    # nothing reads that row's rank.
    token = tl.load(token_ids_ptr + row).to(tl.int64)
    token = tl.minimum(tl.maximum(token, 0), vocab_size - 1)
    own = tl.load(row_ptr + token).to(tl.float32)
    likelier = 0
    for start in range(0, vocab_size, BLOCK_SIZE):
        column = start + tl.arange(0, BLOCK_SIZE)
        logits = tl.load(
            row_ptr + column, mask=column < vocab_size, other=float("-inf")
        ).to(tl.float32)
        likelier += tl.sum((logits > own).to(tl.int32))
    tl.store(output_ptr + row, likelier + 1)


def rank_strictly() -> None:
    """From now on the V2 runner of this process ranks with our kernel."""
    from vllm.v1.worker.gpu.sample import logprob

    logprob._ranks_kernel = strict_ranks_kernel


def ranks_in_place(logits_RV: torch.Tensor, tokens_R: torch.Tensor) -> torch.Tensor:
    """The ranks that the V2 runner finds, with the kernel that is in place now."""
    from vllm.v1.worker.gpu.sample import logprob

    rows, vocabulary = logits_RV.shape
    ranks_R = torch.empty(rows, dtype=torch.int64, device=logits_RV.device)
    logprob._ranks_kernel[(rows,)](
        ranks_R, logits_RV, logits_RV.stride(0), tokens_R, vocabulary, BLOCK_SIZE=_BLOCK
    )
    return ranks_R


def batches(most: int) -> list[int]:
    """The numbers of rows which between them need every kernel that steps of up to
    `most` rows need."""
    powers = [
        1 << power for power in range(_SPLIT_ROWS.bit_length()) if 1 << power < most
    ]
    return [*powers, most]


def warm_top_p(runner: Any, mask: Mask) -> int:
    """Have a V2 runner's top-p, `mask`, compiled for each of `batches`; returns how
    many. Nothing on a CPU: 0."""
    if runner.device.type != "cuda":
        return 0
    rows = batches(runner.max_num_reqs)
    # As the sampler's own: float32, contiguous. A kernel writes into its rows.
    logits_RV = torch.zeros(rows[-1], runner.vocab_size, device=runner.device)
    top_p_R = torch.full((rows[-1],), _TOP_P, device=runner.device)
    for count in rows:
        mask(logits_RV[:count], None, top_p_R[:count])
    return len(rows)
