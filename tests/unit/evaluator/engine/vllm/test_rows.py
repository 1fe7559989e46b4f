"""The rows of a step, read at once, against vLLM's tables read number by number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluator.engine.vllm.requests import Top, rows_of, top_of


def outputs(counts: list[int | None], width: int, seed: int = 0) -> list[Any]:
    """EngineCoreOutputs of so many tokens each, as views of one table; None: no log-probabilities were asked for.
    Values are multiples of a half, so that many tie."""
    rng = np.random.default_rng(seed)
    rows = sum(count or 0 for count in counts)
    top = -np.sort(rng.integers(0, 6, (rows, width)) / 2, axis=1).astype(np.float32)
    logprobs = np.concatenate([rng.normal(size=(rows, 1)).astype(np.float32), top], axis=1)
    ids, ranks = rng.integers(0, 1000, (rows, width + 1)), rng.integers(1, 50, rows)
    made, first = [], 0
    for count in counts:
        last = first + (count or 0)
        views = SimpleNamespace(
            logprob_token_ids=ids[first:last],
            logprobs=logprobs[first:last],
            sampled_token_ranks=ranks[first:last],
        )
        made.append(SimpleNamespace(new_logprobs=None if count is None else views))
        first = last
    return made


def slowly(output: Any, wanted: int) -> list[tuple[float, int, Top]]:
    views, found = output.new_logprobs, []
    for own, ids, rank in zip(views.logprobs, views.logprob_token_ids, views.sampled_token_ranks, strict=True):
        best = sorted((-float(own[1 + k]), int(ids[1 + k])) for k in range(wanted))
        found.append((float(own[0]), int(rank), (tuple(t for _, t in best), tuple(-v for v, _ in best))))
    return found


@pytest.mark.parametrize("counts", [[1, 1, 1], [1, None, 1], [None, None], [], [2, 1, None, 0, 3]])
@pytest.mark.parametrize(("width", "wanted"), [(6, 6), (6, 1), (6, 4), (1, 1), (0, 0), (6, 0)])
def test_rows_are_those_of_the_tables(counts, width, wanted):
    for seed in range(8):
        asked = outputs(counts, width, seed)
        rows = rows_of(asked)
        assert len(rows) == len(asked)
        for output, found in zip(asked, rows, strict=True):
            expected = [] if output.new_logprobs is None else slowly(output, wanted)
            assert [(row[0], row[1], top_of(row, wanted)) for row in found] == expected
            assert all(type(token) is int for row in found for token in row[2])


def test_ties_go_to_the_lower_id_within_what_is_asked_for():
    row = (-1.0, 1, (9, 4, 7, 2), (-1.0, -1.0, -2.0, -2.0), True)
    assert top_of(row, 1) == ((9,), (-1.0,))
    assert top_of(row, 3) == ((4, 9, 7), (-1.0, -1.0, -2.0))
    assert top_of(row, 4) == ((4, 9, 2, 7), (-1.0, -1.0, -2.0, -2.0))
