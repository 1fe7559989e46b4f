"""The log-probabilities of the tokens that a step generated, in Python's numbers.

vLLM's scheduler would give each request its row of the step's table, as three numpy
views. To make a view, and to turn it into Python's numbers, takes microseconds,
however small it is. Here a request gets the place of its row, and the table is
turned into numbers at once.

Replaces `ModelRunnerOutput.logprobs`, by wrapping `Scheduler.update_from_output`,
which calls its `slice_request`. Reads `LogprobsLists`."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from evaluator.engine.base import Streamed, TokenTable
from evaluator.engine.distributions import WIDTH


class StepTable(TokenTable):
    """The table of a step of vLLM: a row for each of its requests, as wide as the
    most demanding one needs.

    Tied tokens are in the order of their ids: torch.topk leaves it open."""

    lists: Any = None  # vLLM's LogprobsLists, until the step's tokens are received

    @classmethod
    def of(cls, lists: Any) -> StepTable:
        """The table, without its numbers as yet."""
        return cls(lists=lists, width=lists.logprob_token_ids.shape[1])

    def slice_request(self, req_idx: int, num_positions: int) -> Streamed:
        """What vLLM puts into a request's output."""
        assert num_positions <= 1, (
            "engines generate one token a step: there is no speculative decoding"
        )
        return self, req_idx * self.width + 1

    def read(self) -> bool:
        """Read all numbers. Returns whether any token's log-probability is NaN."""
        ids, width = self.lists.logprob_token_ids, self.width
        logprobs = self.lists.logprobs[:, :width]  # without divergences
        ordered = logprobs[:, 2:] < logprobs[:, 1:-1]
        # ties, or NaN: of a token, all its row
        odd = np.count_nonzero(ordered) < ordered.size or width < 3
        if odd and width > 2:
            order = np.lexsort((ids[:, 1:], -logprobs[:, 1:]))
            ids, logprobs = (
                np.concatenate(
                    (each[:, :1], np.take_along_axis(each[:, 1:], order, axis=1)),
                    axis=1,
                )
                for each in (ids, logprobs)
            )
        self.ids, self.logprobs = (
            array(each.dtype.char, each.tobytes()) for each in (ids, logprobs)
        )
        return odd and bool(np.isnan(logprobs[:, 0]).any())

    def rank(self, start: int) -> int:
        """Of a token in the model's distribution."""
        rank: int = self.lists.sampled_token_ranks[(start - 1) // self.width].item()
        return rank

    def divergences(self, start: int) -> list[float]:
        """The fields of a Divergence at a token of a score that is compared."""
        found: list[float] = self.lists.logprobs[
            (start - 1) // self.width, -WIDTH:
        ].tolist()
        return found

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
