"""What vLLM reports of the tokens that a step generated: their log-probabilities and ranks, and the likeliest tokens.

vLLM gives each request its rows as views of one table. Turning a view into Python numbers takes microseconds however
small it is, so the views of a step are put together again and turned at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

Top = tuple[tuple[int, ...], tuple[float, ...]]  # ids and log-probabilities, most likely first

# Of one generated token: log-probability, rank, ids and log-probabilities of the likeliest tokens, and whether two of
# these log-probabilities are equal. A plain tuple: a step has hundreds. It is as wide as its step's most demanding
# request needs.
Row = tuple[float, int, tuple[int, ...], tuple[float, ...], bool]


def rows_of(outputs: Sequence[Any]) -> list[Sequence[Row]]:
    """For each of a step's EngineCoreOutputs a row for each new token, or none where it was not asked for any."""
    reports = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if not reports:
        return [()] * len(outputs)
    ids = np.concatenate([report.logprob_token_ids for report in reports])
    logprobs = np.concatenate([report.logprobs for report in reports])
    ranks = np.concatenate([report.sampled_token_ranks for report in reports])
    own, top = logprobs[:, 0], logprobs[:, 1:]  # the first column is the generated token's own
    tied = (top[:, 1:] == top[:, :-1]).any(axis=1)
    rows = zip(own.tolist(), ranks.tolist(), _tuples(ids[:, 1:]), _tuples(top), tied.tolist(), strict=True)
    if len(ids) == len(reports):  # one new token each, as nearly always
        return [() if output.new_logprobs is None else (next(rows),) for output in outputs]
    counts = [0 if output.new_logprobs is None else len(output.new_logprobs.logprobs) for output in outputs]
    return [tuple(islice(rows, count)) for count in counts]


def top_of(row: Row, width: int) -> Top:
    """The `width` most likely tokens, ties to the lower id: torch.topk leaves their order open. Which of several tied
    tokens are listed stays open."""
    _, _, ids, logprobs, tied = row
    ids, logprobs = ids[:width], logprobs[:width]
    if not tied:
        return ids, logprobs
    pairs = sorted(zip(logprobs, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return tuple(token for _, token in pairs), tuple(logprob for logprob, _ in pairs)


def _tuples(table: npt.NDArray[Any]) -> list[tuple[Any, ...]]:
    """The rows of a table. Its columns are zipped in C."""
    return list(zip(*table.T.tolist(), strict=True)) if table.shape[1] else [()] * len(table)
