"""How far two sides are apart, answer by answer. Pure.

Every function returns one distance per compared thing: nats for log-probabilities, 0 or 1 for agreement. It raises
DisagreementError if the two sides did not answer the same requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis
from launch.doctor.results import Answers, DisagreementError

Beams = Mapping[str, tuple[Hypothesis, ...]]


def of_scores(ours: Answers, theirs: Answers) -> list[float]:
    """Nats between the log-probabilities of each scored token."""
    distances = []
    for name, one, other in _pairs(ours, theirs):
        if one.token_ids != other.token_ids or len(one.logprobs) != len(other.logprobs):
            raise DisagreementError(f"{name}: the sides scored other tokens")
        distances += [abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True)]
    return distances


def of_ranks(ours: Answers, theirs: Answers) -> list[float]:
    """The logarithm of the ratio of the ranks of each scored token: 0.69 where one side has 1 and the other 2."""
    distances = []
    for name, one, other in _pairs(ours, theirs):
        if len(one.ranks) != len(other.ranks) or min((*one.ranks, *other.ranks), default=0) < 1:
            raise DisagreementError(f"{name}: a scored token has no rank")
        distances += [abs(math.log(a / b)) for a, b in zip(one.ranks, other.ranks, strict=True)]
    return distances


def of_twin_ranks(answers: Answers) -> list[float]:
    """1 for each rank that is even, of a model whose tokens are twins with equal logits, two by two.

    The tokens that are more likely come in twos, so a strict rank is odd. Counting those that are equally likely as
    well gives an even one.
    """
    ranks = [rank for _, answer in _sound(answers) for rank in answer.ranks]
    return [float(rank % 2 == 0) for rank in ranks]


def of_greedy(ours: Answers, theirs: Answers) -> list[float]:
    """Nats between the log-probabilities of each greedy token, up to the first token that differs.

    There, how much more likely the first side thinks its own token than the other's: nearly nothing where two tokens
    are as good as tied.
    """
    distances = []
    for name, one, other in _pairs(ours, theirs):
        for step, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
            if a != b:
                distances.append(_lead(one, step, b))
                break
            distances.append(abs(one.logprobs[step] - other.logprobs[step]))
        else:
            if len(one.token_ids) != len(other.token_ids):
                raise DisagreementError(f"{name}: one side ended after {len(one.token_ids)} tokens, the other did not")
    return distances


def of_tokens(ours: Answers, theirs: Answers) -> list[float]:
    """1 for each answer whose tokens differ."""
    return [float(one.token_ids != other.token_ids) for _, one, other in _pairs(ours, theirs)]


def of_beams(ours: Beams, theirs: Beams) -> list[float]:
    """Nats per token between the scores of the beams of each prompt, best with best, second with second."""
    if not ours or ours.keys() != theirs.keys():
        raise DisagreementError("the sides searched from other prompts")
    distances = []
    for name, hypotheses in ours.items():
        if len(hypotheses) != len(theirs[name]) or not hypotheses:
            raise DisagreementError(f"{name}: {len(hypotheses)} beams on one side, {len(theirs[name])} on the other")
        distances += [abs(one.score - other.score) for one, other in zip(hypotheses, theirs[name], strict=True)]
    return distances


def of_beam_scores(ours: Beams, scored: Answers) -> list[float]:
    """Nats per token between each beam's score and that of the same tokens, scored as `NAME/NUMBER`."""
    distances = []
    for name, hypotheses in ours.items():
        for number, hypothesis in enumerate(hypotheses):
            answer = scored.get(f"{name}/{number}")
            if answer is None or answer.token_ids != hypothesis.token_ids:
                raise DisagreementError(f"{name}: beam {number} was not scored")
            distances.append(abs(hypothesis.logprob - sum(answer.logprobs)) / len(hypothesis.token_ids))
    if not distances:
        raise DisagreementError("no beam was found")
    return distances


def _lead(answer: Response, step: int, token: int) -> float:
    """How much more likely an answer's token is than `token`, in nats; at least, where that one is not listed."""
    ids, values = answer.top_ids[step], answer.top_logprobs[step]
    other = values[ids.index(token)] if token in ids else values[-1]
    return answer.logprobs[step] - other


def _pairs(ours: Answers, theirs: Answers) -> Iterator[tuple[str, Response, Response]]:
    lacking = sorted(ours.keys() ^ theirs.keys())
    if lacking:
        raise DisagreementError(f"{lacking[0]}: answered by one side only")
    both = dict(_sound(theirs))
    for name, answer in _sound(ours):
        yield name, answer, both[name]


def _sound(answers: Answers) -> Iterator[tuple[str, Response]]:
    for name, answer in answers.items():
        if answer.status != "ok":
            raise DisagreementError(f"{name}: {answer.error or answer.status}")
        yield name, answer
