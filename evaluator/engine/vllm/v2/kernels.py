"""Strict ranks on vLLM's V2 model runner: a Triton kernel.

A token's rank is 1 + the number of tokens that are likelier. vLLM's own kernel counts
the tokens that are at least as likely. Ties are common in bfloat16, and there the two
differ. Our kernel has the same parameters and takes its place. vLLM calls it for
sampled tokens and for those of prompts.

Replaces `vllm.v1.worker.gpu.sample.logprob._ranks_kernel`.
"""

# ruff: noqa: ANN001, ANN201  (Triton resolves annotations when it compiles, and supports only its own)

import torch
from vllm.triton_utils import tl, triton

_BLOCK = 8192  # as vLLM calls it


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
