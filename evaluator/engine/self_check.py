"""Checks, when an engine starts, that its fast way to score agrees with its slow one.

Forced scores and prompt log-probabilities are the same numbers, computed in two ways
by an engine. Kernels and their errors differ between builds, devices, dtypes and
runners. So an engine scores a few short continuations both ways before it serves. Both
ways rank with the same kernel, which a planted table checks (`vllm/worker.py`). Pure;
`vllm/engine.py` runs it."""

import random
from collections.abc import Sequence

from evaluator.core.records import TokenIds
from evaluator.engine.base import NOT_NUMBERS, Score
from evaluator.engine.comparisons import Answers, DisagreementError, of_ranks, of_scores
from evaluator.engine.tolerances import NATS, RANKS, Precision, Tolerance

_ROUNDING = 1e-2  # nats by which a log-probability may lie above 0
# lengths in tokens: within a cache block, and after the first and the second end of one
_PROMPTS = (1, 17, 33)
_CONTINUATIONS = (1, 5)  # a single token, and several


def questions(vocabulary: int, positions: int) -> list[Score]:
    """A few continuations of short prompts; fewer if the engine's context is too
    short for all."""
    draw = random.Random(0)

    def tokens(count: int) -> TokenIds:
        return tuple(draw.randrange(vocabulary) for _ in range(count))

    requests = []
    for length in _PROMPTS:
        prompt = tokens(length)
        for count in _CONTINUATIONS:
            request = Score(
                request_id=f"self-check-{length}.{count}",
                prompt_ids=prompt,
                continuation_ids=tokens(count),
            )
            # Prompt log-probabilities need room for one token more.
            if length + count < positions:
                requests.append(request)
    return requests


def disagreement(
    fast: Answers, slow: Answers, computed: Precision, requests: Sequence[Score]
) -> str | None:
    """How the scores of the two ways differ, in words; None if they agree.

    A request that neither way can answer proves nothing: a collapsed model has no
    log-probabilities at all."""
    for request in requests:
        ours, theirs = fast.get(request.request_id), slow.get(request.request_id)
        if ours is None or theirs is None:
            return "a score was not answered"
        if ours.status == "ok" and ours.token_ids != request.continuation_ids:
            return "forced scores are of other tokens than those requested"
    failed = {
        name
        for name in fast.keys() & slow.keys()
        if fast[name].status == slow[name].status == "engine_error"
    }
    fast = {name: answer for name, answer in fast.items() if name not in failed}
    slow = {name: answer for name, answer in slow.items() if name not in failed}
    if not fast and not slow:
        return None
    try:
        nats = Tolerance.of(of_scores(fast, slow))
        ranks = Tolerance.of(of_ranks(fast, slow))
    except DisagreementError as error:
        return f"forced scores cannot be compared: {error}"
    for measured, allowed, unit in (
        (nats, NATS[computed], "nats per token"),
        (ranks, RANKS[computed], "(log ratio of ranks)"),
    ):
        if not allowed.allows(measured):
            return (
                "forced scores differ from prompt log-probabilities by up to"
                f" {measured.largest:.2g} {unit} (mean {measured.mean:.2g}; allowed are"
                f" {allowed.largest:g} and {allowed.mean:g})"
            )
    return None


def impossible(answers: Answers) -> str | None:
    """A log-probability or rank, in words, that no model has, such as uninitialised
    memory gives; else None."""
    for answer in answers.values():
        if any(value > _ROUNDING for value in answer.logprobs):
            return f"a log-probability of {max(answer.logprobs):.2g} nats"
        if answer.status != "ok" and answer.error != NOT_NUMBERS:
            return answer.error
    return None
