"""How far two computations of the same requests are apart, answer by answer. Pure.

A function `of_...` returns one distance per compared thing: nats for
log-probabilities. It raises DisagreementError if the two sides
did not answer the same requests."""

import math
from collections.abc import Iterator, Mapping

from evaluator.engine.base import Response

Answers = Mapping[str, Response]  # by request id


class DisagreementError(Exception):
    """Answers that cannot be compared; the text gives the reason in one line."""


def of_scores(ours: Answers, theirs: Answers) -> list[float]:
    """Nats between the log-probabilities of each scored token."""
    distances = []
    for name, one, other in pairs(ours, theirs):
        if one.token_ids != other.token_ids or len(one.logprobs) != len(other.logprobs):
            raise DisagreementError(f"{name}: the sides scored other tokens")
        for own, their in zip(one.logprobs, other.logprobs, strict=True):
            distances.append(abs(own - their))
    return distances


def of_ranks(ours: Answers, theirs: Answers) -> list[float]:
    """The logarithm of the ratio of the ranks of each scored token: 0.69 where one
    side has 1 and the other 2."""
    distances = []
    for name, one, other in pairs(ours, theirs):
        ranks = (*one.ranks, *other.ranks)
        if len(one.ranks) != len(other.ranks) or min(ranks, default=0) < 1:
            raise DisagreementError(f"{name}: a scored token has no rank")
        for own, their in zip(one.ranks, other.ranks, strict=True):
            distances.append(abs(math.log(own / their)))
    return distances


def pairs(ours: Answers, theirs: Answers) -> Iterator[tuple[str, Response, Response]]:
    for name in sorted(ours.keys() ^ theirs.keys()):
        raise DisagreementError(f"{name}: answered by one side only")
    for name, answer in ours.items():
        for each in (answer, theirs[name]):
            if each.status != "ok":
                raise DisagreementError(f"{name}: {each.error or each.status}")
        yield name, answer, theirs[name]
