"""Distances between two sides' answers."""

import math

import pytest

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis
from launch.doctor import results as comparisons
from launch.doctor.checks import CHECKS
from launch.doctor.results import DisagreementError, NotHereError, Results, RunResult


def greedy(*ids: int, logprobs=None, listed=None) -> dict[str, Response]:
    """An answer whose every step lists its own token and token 99, a nat behind."""
    values = tuple(logprobs or [-0.5] * len(ids))
    tops = listed or [
        ((token, 99), (value, value - 1.0))
        for token, value in zip(ids, values, strict=True)
    ]
    top_ids, top_logprobs = zip(*tops, strict=True)
    return {
        "a": Response(
            request_id="a",
            token_ids=ids,
            logprobs=values,
            top_ids=top_ids,
            top_logprobs=top_logprobs,
        )
    }


def score(*logprobs: float, ranks=(1, 1), ids=(4, 5)) -> dict[str, Response]:
    return {
        "a": Response(request_id="a", token_ids=ids, logprobs=logprobs, ranks=ranks)
    }


def test_scores_ranks_and_tokens():
    assert comparisons.of_scores(score(-1.0, -2.0), score(-1.5, -2.0)) == [0.5, 0.0]
    with pytest.raises(DisagreementError, match="a: the sides scored other tokens"):
        comparisons.of_scores(score(-1.0, -2.0), score(-1.0, -2.0, ids=(4, 6)))
    with pytest.raises(DisagreementError, match="a: answered by one side only"):
        comparisons.of_scores(score(-1.0, -2.0), {})
    assert comparisons.of_ranks(
        score(0, 0, ranks=(1, 8)), score(0, 0, ranks=(2, 8))
    ) == [math.log(2), 0]
    with pytest.raises(DisagreementError, match="no rank"):
        comparisons.of_ranks(score(0, 0, ranks=(0, 8)), score(0, 0, ranks=(2, 8)))
    assert comparisons.of_twin_ranks(score(0, 0, ranks=(1, 8))) == [0, 1]
    assert comparisons.of_tokens(greedy(7, 8), greedy(7, 8, logprobs=(-9.0, -9.0))) == [
        0
    ]
    assert comparisons.of_tokens(greedy(7, 8), greedy(7, 9)) == [1]


def test_greedy_ties_are_close():
    assert comparisons.of_greedy(
        greedy(7, 8), greedy(7, 8, logprobs=(-0.5, -0.75))
    ) == [0, 0.25]
    tied = greedy(7, 8, listed=[((7, 99), (-0.5, -1.5)), ((8, 9), (-0.5, -0.5001))])
    assert comparisons.of_greedy(tied, greedy(7, 9, 3)) == [0, pytest.approx(1e-4)]
    # not listed: at least as far as the last
    assert comparisons.of_greedy(greedy(7, 8), greedy(7, 9, 3)) == [0, 1.0]
    with pytest.raises(DisagreementError, match="ended after 2 tokens"):
        comparisons.of_greedy(greedy(7, 8), greedy(7, 8, 9))


def test_beams():
    ours = {"p": (Hypothesis(token_ids=(4, 0), logprob=-1.0, score=-0.5),)}
    theirs = {"p": (Hypothesis(token_ids=(5, 0), logprob=-1.2, score=-0.6),)}
    assert comparisons.of_beams(ours, theirs) == [pytest.approx(0.1)]
    scored = {
        "p/0": Response(request_id="p/0", token_ids=(4, 0), logprobs=(-0.4, -0.4))
    }
    assert comparisons.of_beam_scores(ours, scored) == [pytest.approx(0.1)]
    with pytest.raises(DisagreementError, match="p: beam 0 was not scored"):
        comparisons.of_beam_scores(ours, {})
    with pytest.raises(DisagreementError, match="no beam was found"):
        comparisons.of_beam_scores({}, {})
    with pytest.raises(DisagreementError, match="other prompts"):
        comparisons.of_beams(ours, {})


def test_missing_answers_are_no_evidence():
    results = Results({"one": "no GPU left", "two": RunResult()})
    reasons = {
        "one": "one: no GPU left",
        "two": "two: no answer of stage 'dense'",
        "three": "it did not run",
    }
    for name, why in reasons.items():
        with pytest.raises(DisagreementError, match=why):
            results.answers(name, "dense")
    wrong = RunResult(
        scoring="prompt_logprobs",
        notes=("they differ",),
        facts={"self-check": "failed"},
    )
    older = RunResult(
        scoring="prompt_logprobs",
        notes=("no trace replay",),
        facts={"self-check": "not needed"},
    )
    results = Results({"sound": RunResult(), "wrong": wrong, "older": older})
    assert results.forced("sound") == RunResult()
    with pytest.raises(DisagreementError, match="wrong: they differ"):
        results.forced("wrong")
    with pytest.raises(NotHereError, match="no trace replay"):
        results.forced("older")
    (check,) = (each for each in CHECKS if each.name == "CUDA graphs")
    by_run = {
        "served": RunResult(facts={"graphs": "NONE"}),
        "eager": RunResult(facts={"graphs": "NONE"}),
    }
    found = check.compare(Results(by_run), "half", {})
    assert (found.status, found.why) == (
        "skipped",
        "vLLM uses none for this model and device",
    )
    by_run["served"] = RunResult(facts={"graphs": "FULL_DECODE_ONLY"})
    # neither has answered anything
    assert check.compare(Results(by_run), "half", {}).status == "fail"
