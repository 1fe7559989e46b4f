"""Whether a worker ranks strictly: a token's rank is 1 + the number of tokens that are likelier.

vLLM counts the tokens that are at least as likely. Ties are common in bfloat16, and there the two differ. So each
runner's count is replaced (v1/sampler.py, v2/ranks.py).
"""

from __future__ import annotations

from typing import Any

import torch

_V2_RUNNER = "vllm.v1.worker.gpu.model_runner"  # the V2 runner's module; a CPU's runner is a subclass
_PLANTED_ROWS = 8
_PLANTED_VALUES = 40  # on either side of 0; a vocabulary has far more tokens, so that most values are tied


def runs_v2(runner: Any) -> bool:
    """Whether a worker's model runner is vLLM's V2."""
    return any(kind.__module__ == _V2_RUNNER for kind in type(runner).__mro__)


def wrong_rank(runner: Any) -> str | None:
    """The first wrong rank of a planted table, in words, as the runner ranks now; None if all are right.

    The table has ties, tokens with probability 0, and rows that are not contiguous. It is as wide as the vocabulary.
    torch counts on the CPU, independently of the checked code.
    """
    if runs_v2(runner):
        from evaluator.engine.vllm.v2.ranks import ranks_in_place
    else:
        from evaluator.engine.vllm.v1.sampler import ranks_in_place
    vocabulary = runner.model_config.get_vocab_size()
    draw = torch.Generator().manual_seed(0)
    drawn_RV = torch.randint(-_PLANTED_VALUES, _PLANTED_VALUES + 1, (_PLANTED_ROWS, vocabulary + 1), generator=draw)
    table_RV = drawn_RV.float().div_(8)[:, :vocabulary]  # exact in every dtype
    table_RV[0] = 1.0
    table_RV[1, ::2] = float("-inf")
    tokens_R = torch.randint(vocabulary, (_PLANTED_ROWS,), generator=draw)
    expected_R = (table_RV > table_RV.gather(1, tokens_R[:, None])).sum(1) + 1
    for dtype in dict.fromkeys((runner.model_config.dtype, torch.float32)):
        wide_RV = torch.empty(drawn_RV.shape, dtype=dtype, device=runner.device)
        planted_RV = wide_RV[:, :vocabulary].copy_(table_RV)
        found_R = ranks_in_place(planted_RV, tokens_R.to(runner.device)).cpu()
        for found, expected in zip(found_R.tolist(), expected_R.tolist(), strict=True):
            if found != expected:
                return f"a token of rank {expected} got {found} (in {str(dtype).removeprefix('torch.')})"
    return None
