"""Distances between two sides' answers, and how far these may be apart."""

import math
import re

import pytest
from msgspec.structs import replace

from evaluator.engine.base import NOT_NUMBERS, Response
from evaluator.engine.comparisons import DisagreementError, of_ranks, of_scores
from evaluator.engine.self_check import disagreement, impossible, questions
from evaluator.engine.tolerances import Tolerance, precision
from tests.support.fake import FakeLM


def score(*logprobs, ranks=(1, 1), ids=(4, 5)):
    return {
        "a": Response(request_id="a", token_ids=ids, logprobs=logprobs, ranks=ranks)
    }


def test_distances_are_exact():
    assert of_scores(score(-1.0, -2.0), score(-1.5, -2.0)) == [0.5, 0.0]
    ours, theirs = score(0, 0, ranks=(1, 8)), score(0, 0, ranks=(2, 8))
    assert of_ranks(ours, theirs) == [math.log(2), 0]
    assert Tolerance.of([0.5, 0.0]) == Tolerance(0.5, 0.25)


@pytest.mark.parametrize(
    ("compare", "theirs", "reason"),
    [
        (of_scores, score(-1, -2, ids=(4, 6)), "a: the sides scored other tokens"),
        (of_scores, {}, "a: answered by one side only"),
        (of_ranks, score(0, 0, ranks=(0, 8)), "a: a scored token has no rank"),
        (
            of_scores,
            {"a": Response(request_id="a", status="engine_error", error="too long")},
            "a: too long",
        ),
    ],
)
def test_incomparable_answers_are_no_evidence(compare, theirs, reason):
    with pytest.raises(DisagreementError, match=reason):
        compare(score(-1.0, -2.0), theirs)


@pytest.mark.parametrize(
    ("largest", "mean", "allowed"),
    [(0.5, 0.1, True), (0.6, 0.1, False), (0.5, 0.2, False), (math.nan, 0, False)],
)
def test_largest_and_mean_count(largest, mean, allowed):
    assert Tolerance(0.5, 0.1).allows(Tolerance(largest, mean)) is allowed


@pytest.mark.parametrize(
    ("dtype", "logits", "on_gpu", "name"),
    [
        ("float32", "float32", False, "float32"),
        ("float32", "float32", True, "float32 on a GPU"),
        ("bfloat16", "bfloat16", False, "half"),
        ("bfloat16", "float32", True, "half, float32 logits"),
    ],
)
def test_precision_follows_dtype_and_logits(dtype, logits, on_gpu, name):
    assert precision(dtype, logits, on_gpu=on_gpu) == name


def answers():
    return {
        request.request_id: FakeLM().answer(request) for request in questions(16, 400)
    }


def changed(**fields):
    """The answers, of which one is another."""
    found = answers()
    found["self-check-17.5"] = replace(found["self-check-17.5"], **fields)
    return found


def differ(fast, slow):
    return disagreement(fast, slow, "float32", questions(16, 400))


def test_questions_fit_short_contexts():
    asked = questions(16, 400)
    assert [(len(each.prompt_ids), len(each.continuation_ids)) for each in asked] == [
        (prompt, count) for prompt in (1, 17, 33) for count in (1, 5)
    ]
    # with room for the token after a prompt
    assert [len(each.prompt_ids) for each in questions(16, 7)] == [1, 1]


FAILED = {"status": "engine_error", "error": "no", "logprobs": (), "ranks": ()}


def test_engine_agrees_with_itself():
    both = answers()
    assert differ(both, dict(reversed(both.items()))) is None
    # neither way can answer: it says nothing of either
    assert differ(changed(**FAILED), changed(**FAILED)) is None
    assert differ({}, {}) == "a score was not answered"


@pytest.mark.parametrize(
    ("fast", "words"),
    [
        (
            {"logprobs": (-9.0, -9.0, -9.0, -9.0, -9.0)},
            "forced scores differ from prompt log-probabilities by up to",
        ),
        ({"ranks": (16, 16, 16, 16, 16)}, r"by up to \S+ \(log ratio of ranks\)"),
        ({"token_ids": (9,) * 5}, "forced scores are of other tokens than those"),
        (FAILED, "forced scores cannot be compared: self-check-17.5: no"),
    ],
)
def test_wrong_forced_scores_are_named(fast, words):
    found = differ(changed(**fast), answers())
    assert found is not None
    assert re.search(words, found)


def test_impossible_scores_are_named():
    assert impossible(answers()) is None
    assert impossible(changed(logprobs=(0.4,))) == "a log-probability of 0.4 nats"
    assert impossible(changed(logprobs=(1e-6,))) is None
    assert impossible(changed(**(FAILED | {"error": NOT_NUMBERS}))) is None
    for rank in (0, 17):
        wrong = score(-1.0, -2.0, ranks=(rank, 1))["a"].or_error(16)
        assert impossible({"a": wrong}) == f"a rank of {rank} in a vocabulary of 16"
