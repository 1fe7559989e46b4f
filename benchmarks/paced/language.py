"""A language model that costs next to nothing: a `FakeLM` whose distributions were drawn before the clock starts.

The next-token distribution after a prefix is one of `STATES`, found by folding the prefix's token ids: equal prefixes
have equal distributions, so beams, samples and scores fit together as a model's do. Some prefixes are *planted*: there
a given token is the likeliest, so that greedy answers say the gold answer.

How peaked the distributions are and how often EOS is the likeliest token are set so that lengths and beams are about
those of SmolLM2-135M on XQuAD (answers of 22 to 28 tokens where 32 are allowed, 37 rollouts to a beam search).
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from evaluator.engine.fake import FakeLM

STATES = 1021
TOP = 16  # tokens of a distribution: the tail is nobody's answer
_SHARPNESS = 3.5
_EOS_FIRST = 1 / 45  # of the states: EOS is the likeliest token
_RANK = 57  # of a scored token that is not among them


class ScriptedLM:
    """Distributions as rows of tables: ids and log-probabilities, most likely first."""

    def __init__(self, vocabulary: int, eos_id: int) -> None:
        rng = random.Random(0)
        script = FakeLM(vocabulary=4 * TOP, eos_ids=frozenset(), seed=1, sharpness=_SHARPNESS)
        others = [token for token in range(vocabulary) if token != eos_id]
        self._ids: list[list[int]] = []
        self._logprobs: list[list[float]] = []
        for state in range(STATES):
            row = np.sort(script.logprobs((state,)))[::-1][:TOP].astype(np.float32)
            ids = rng.sample(others, TOP)
            ids[0 if rng.random() < _EOS_FIRST else rng.randrange(2, TOP)] = eos_id
            self._ids.append(ids)
            self._logprobs.append([float(value) for value in row])
        self._cumulated = [list(accumulate(np.exp(row[:8]).tolist())) for row in self._logprobs]
        self._planted: dict[tuple[int, ...], int] = {}  # prefix -> row
        self.eos_id = eos_id

    def plant(self, prompt_ids: tuple[int, ...], answer: Sequence[int]) -> None:
        """Make `answer` the greedy answer to a prompt, followed by the last token's state."""
        prefix = prompt_ids
        for token in answer:
            ids = list(self._ids[state_of(prefix)])
            if token in ids:
                ids[ids.index(token)] = ids[0]
            ids[0] = token
            self._planted[prefix] = len(self._ids)
            self._ids.append(ids)
            self._logprobs.append(self._logprobs[state_of(prefix)])
            self._cumulated.append(self._cumulated[state_of(prefix)])
            prefix = (*prefix, token)

    def tables(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Ids and log-probabilities, [row][TOP]. Nothing is planted after they have been taken."""
        return np.array(self._ids, dtype=np.int64), np.array(self._logprobs, dtype=np.float32)

    def greedy(self, prompt_ids: tuple[int, ...], most: int) -> tuple[list[int], list[int]]:
        """The likeliest continuation, at most `most` tokens or up to EOS, and the row of each token."""
        return self._continued(prompt_ids, most, None)

    def sampled(self, prompt_ids: tuple[int, ...], most: int, seed: int) -> tuple[list[int], list[int]]:
        """The same, drawn."""
        return self._continued(prompt_ids, most, random.Random(seed))

    def forced(self, prompt_ids: tuple[int, ...], continuation: Sequence[int]) -> list[int]:
        """The row of each token of a continuation."""
        rows, state = [], state_of(prompt_ids)
        prefix: tuple[int, ...] | None = prompt_ids
        for token in continuation:
            planted = None if prefix is None else self._planted.get(prefix)
            prefix = None if planted is None or prefix is None else (*prefix, token)
            rows.append(state if planted is None else planted)
            state = _after(state, token)
        return rows

    def rank(self, row: int, token: int) -> tuple[int, float]:
        """The rank and log-probability of a token."""
        ids = self._ids[row]
        if token in ids:
            return 1 + ids.index(token), self._logprobs[row][ids.index(token)]
        return _RANK, self._logprobs[row][-1] - 2.0

    def _continued(
        self, prompt_ids: tuple[int, ...], most: int, draw: random.Random | None
    ) -> tuple[list[int], list[int]]:
        tokens: list[int] = []
        rows: list[int] = []
        state = state_of(prompt_ids)
        prefix: tuple[int, ...] | None = prompt_ids
        while len(tokens) < most and not (tokens and tokens[-1] == self.eos_id):
            planted = None if prefix is None else self._planted.get(prefix)
            row = state if planted is None else planted
            chances = self._cumulated[row]
            token = self._ids[row][0 if draw is None else bisect_left(chances, draw.random() * chances[-1])]
            tokens.append(token)
            rows.append(row)
            prefix = None if planted is None or prefix is None else (*prefix, token)
            state = _after(state, token)
        return tokens, rows


def state_of(prefix: Sequence[int]) -> int:
    """Which distribution follows a prefix."""
    state = 0
    for token in prefix:
        state = _after(state, token)
    return state


def _after(state: int, token: int) -> int:
    return (state * 31 + token * 17 + 7) % STATES
