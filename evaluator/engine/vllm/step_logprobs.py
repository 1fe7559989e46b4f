"""The log-probabilities of the tokens that a step generated, in Python's numbers.

vLLM's scheduler would give each request its row of the step's table, as three numpy
views. To make a view, and to turn it into Python's numbers, takes microseconds,
however small it is. Here a request gets the place of its row in a table of numbers.

Replaces `ModelRunnerOutput.logprobs`, by wrapping `Scheduler.update_from_output`,
which calls its `slice_request`. Reads `LogprobsLists`."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from evaluator.engine.base import Streamed, TokenTable


class StepTable(TokenTable):
    """The table of a step of vLLM: a row for each of its requests, as wide as the
    most demanding one needs.

    Tied tokens are in the order of their ids: torch.topk leaves it open."""

    ranks: Sequence[int] = ()  # of each row's token in the model's distribution
    # the fields of a Divergence for each row, in a step that compares
    divergences: Sequence[list[float]] = ()

    @classmethod
    def of(cls, lists: Any) -> StepTable:
        """The numbers of vLLM's LogprobsLists."""
        ids, width = lists.logprob_token_ids, lists.logprob_token_ids.shape[1]
        logprobs = lists.logprobs[:, :width]  # without divergences
        if not (logprobs[:, 2:] < logprobs[:, 1:-1]).all():  # ties, or NaN
            order = np.lexsort((ids[:, 1:], -logprobs[:, 1:]))
            order = np.pad(order + 1, ((0, 0), (1, 0)))  # the token itself stays first
            ids = np.take_along_axis(ids, order, axis=1)
            logprobs = np.take_along_axis(logprobs, order, axis=1)
        return cls(
            ids=array(ids.dtype.char, ids.tobytes()),
            logprobs=array(logprobs.dtype.char, logprobs.tobytes()),
            width=width,
            ranks=lists.sampled_token_ranks.tolist(),
            divergences=lists.logprobs[:, width:].tolist(),
        )

    def slice_request(self, req_idx: int, num_positions: int) -> Streamed:
        """What vLLM puts into a request's output."""
        assert num_positions <= 1, (
            "engines generate one token a step: there is no speculative decoding"
        )
        return self, req_idx * self.width + 1

    def alone(self, start: int) -> Streamed:
        """A token without the others of its step."""
        own = slice(start - 1, start)
        return TokenTable(self.ids[own], self.logprobs[own], 1), 1


def hand_out_places(scheduler: Any) -> None:
    """Make a vLLM scheduler give each request the place of its row."""
    update = scheduler.update_from_output

    def update_from_output(scheduler_output: Any, model_runner_output: Any) -> Any:
        if model_runner_output.logprobs is not None:
            model_runner_output.logprobs = StepTable.of(model_runner_output.logprobs)
        return update(scheduler_output, model_runner_output)

    scheduler.update_from_output = update_from_output
