"""Beam search the long way, to compare ours with: every step looks at every continuation of every live prefix.

The rules are those of evaluator/engine/beam.py, written without rollouts, cuts or caches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Tokens = tuple[int, ...]
# Next-token log-probabilities after prefixes of one length, [prefix, token].
Distributions = Callable[[Sequence[Tokens]], np.ndarray]


@dataclass(frozen=True)
class Found:
    beams: list[tuple[Tokens, float]]  # generated ids and their summed log-probability, best first
    closest: float  # the smallest difference that decided something: below rounding, another outcome is as good


def plain_beams(
    distributions: Distributions,
    prompt: Tokens,
    *,
    width: int,
    max_tokens: int,
    eos_ids: frozenset[int],
    twins: Mapping[int, int] | None = None,
) -> Found:
    """`twins` maps tokens to tokens that the model cannot tell from them: that these tie decides nothing."""
    of = twins or {}

    def kind(ids: Tokens) -> Tokens:
        return tuple(of.get(token, token) for token in ids)

    def gap(ranked: Sequence[tuple[float, Tokens]]) -> float:
        return min((a - b for (a, one), (b, other) in pairwise(ranked) if kind(one) != kind(other)), default=np.inf)

    live: list[tuple[float, Tokens]] = [(0.0, ())]
    finished: list[tuple[float, float, Tokens]] = []  # score, sum, ids
    closest = np.inf
    for length in range(1, max_tokens + 1):
        rows = distributions([prompt + ids for _, ids in live])
        everything = [
            (total + float(row[token]), (*ids, int(token)))
            for (total, ids), row in zip(live, rows, strict=True)
            for token in np.argsort(-row, kind="stable")
        ]
        everything.sort(key=lambda candidate: -candidate[0])  # stable: to the better prefix, then the lower id
        closest = min(closest, gap(everything[: 2 * width + len(eos_ids) + 1]))
        at_end = length == max_tokens
        ends = [at_end or ids[-1] in eos_ids for _, ids in everything]
        best = [(total, ids) for (total, ids), end in list(zip(everything, ends, strict=True))[:width] if end]
        finished += [(total / length, total, ids) for total, ids in best]
        finished.sort(key=lambda beam: -beam[0])
        closest = min(closest, gap([(score, ids) for score, _, ids in finished]))
        del finished[width:]
        live = [candidate for candidate, end in zip(everything, ends, strict=True) if not end][:width]
        if not live:
            break
        if len(finished) == width:
            closest = min(closest, abs(live[0][0] / length - finished[-1][0]))
            if width == 1 or live[0][0] / length <= finished[-1][0]:
                break
    return Found(beams=[(ids, total) for _, total, ids in finished], closest=closest)
