"""The report of a score with a reference, on either model runner: a table with columns for a Divergence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.distributions import carry_out


def reports(
    tables: LogprobsTensors, raw_RV: torch.Tensor, tokens: Sequence[int], references: Sequence[tuple[int, Reference]]
) -> list[Any]:
    """Keep or compare the distributions of each reference, and return one LogprobsTensors for each.

    `raw_RV` are the logits that predict `tokens`, and `tables` are these tokens' log-probabilities and ranks. Each of
    `references` comes with its number of rows. A report that compares has a further column for each field of a
    Divergence.
    """
    made = []
    start = 0
    for count, reference in references:
        here = slice(start, start + count)
        start += count
        compared = carry_out(reference, raw_RV[here], tokens[here])
        logprobs = tables.logprobs[here]
        if compared is not None:
            logprobs = torch.cat((logprobs, compared.to(logprobs.device)), 1)
        made.append(LogprobsTensors(tables.logprob_token_ids[here], logprobs, tables.selected_token_ranks[here]))
    return made
