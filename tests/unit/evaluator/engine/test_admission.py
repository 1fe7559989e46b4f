import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Request, Score
from tests.support.fake import FakeLM
from tests.support.requests import generation, scoring

TOO_LONG = "7 prompt tokens and 4 more do not fit the engine's 10 (max_model_len)"
OUTSIDE = "a token id is outside the vocabulary of 8"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (generation("r", (1,) * 6, 4), None),
        (scoring("r", (1,) * 6, (2,) * 4), None),
        (generation("r", (1,) * 7, 4), TOO_LONG),
        (scoring("r", (1,) * 7, (2,) * 4), TOO_LONG),
        (generation("r", (), 4), "the prompt is empty"),
        (generation("r", (1,), 0), "max_tokens is 0"),
        (scoring("r", (1,), ()), "nothing to score"),
        (generation("r", (8,), 1), OUTSIDE),
        (generation("r", (-1,), 1), OUTSIDE),
        (scoring("r", (1,), (9,)), OUTSIDE),
    ],
)
def test_refusals(request_, reason):
    assert refusal(request_, max_model_len=10, vocabulary=8) == reason


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


@given(st.lists(st.tuples(st.sampled_from([(5,), (5, 6)]), tokens), max_size=12))
@settings(deadline=None)
def test_riders_answer_as_if_alone(pairs):
    lm, shared = FakeLM(vocabulary=8), SharedScores()
    asked: list[Request] = [generation("g", (5,), 3)]
    asked += [scoring(n, prompt, ids) for n, (prompt, ids) in enumerate(pairs)]
    computed = shared.admit(asked)
    answers = [
        answer for request in computed for answer in shared.answer(lm.answer(request))
    ]
    assert {answer.request_id: answer for answer in answers} == {
        request.request_id: lm.answer(request) for request in asked
    }
    assert len(answers) == len(asked)
    kept = [
        (request.prompt_ids, request.continuation_ids)
        for request in computed
        if isinstance(request, Score)
    ]
    for prompt, ids in kept:
        beginnings = [other[: len(ids)] for its, other in kept if its == prompt]
        assert beginnings.count(ids) == 1


def test_error_reaches_riders_once():
    shared, leader = SharedScores(), scoring("a", (1,), (2, 3))
    assert shared.admit([scoring("b", (1,), (2,)), leader]) == [leader]
    answers = shared.answer(refuse(leader, "why"))
    assert [(each.request_id, each.status, each.error) for each in answers] == [
        (name, "engine_error", "why") for name in "ab"
    ]
    assert len(shared.answer(refuse(leader, "why"))) == 1
