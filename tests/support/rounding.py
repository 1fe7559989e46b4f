"""What float32 leaves open: tokens that are closer than its rounding may change places between two computations."""

from typing import Any

import torch

from evaluator.engine.base import Score

ROUNDING = 2e-5  # nats


def rank_bounds(model: Any, request: Score) -> tuple[list[int], list[int]]:
    """The ranks that each token may have if transformers' `model` rounded otherwise; mostly both are equal."""
    ids = request.prompt_ids + request.continuation_ids
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0, len(request.prompt_ids) - 1 : -1].log_softmax(-1)
    own = rows.gather(1, torch.tensor(request.continuation_ids)[:, None])
    low, high = (rows > own + ROUNDING).sum(-1) + 1, (rows > own - ROUNDING).sum(-1)
    return low.tolist(), high.tolist()
