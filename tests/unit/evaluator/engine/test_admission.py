import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.engine.admission import SharedScores, refusal, refuse, room
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
    if reason is not None:
        response = refuse(request_, reason)
        assert (response.request_id, response.status, response.error) == (
            "r",
            "engine_error",
            reason,
        )


tokens = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([(5,), (5, 6)]), tokens), max_size=12),
    st.booleans(),
)
def test_riders_answer_as_if_alone(pairs, with_greedy):
    lm = FakeLM(vocabulary=8)
    asked: list[Request] = [
        scoring(n, prompt, ids) for n, (prompt, ids) in enumerate(pairs)
    ]
    if with_greedy:
        asked.insert(0, generation("g", (5,), 3))
    shared = SharedScores()
    computed = shared.admit(asked)
    answers = [
        answer for request in computed for answer in shared.answer(lm.answer(request))
    ]
    assert {a.request_id: a for a in answers} == {
        r.request_id: lm.answer(r) for r in asked
    }
    assert len(answers) == len(asked)
    if with_greedy:
        assert computed[0].request_id == "g"
    kept = [
        (r.prompt_ids, r.continuation_ids) for r in computed if isinstance(r, Score)
    ]
    for prompt, ids in kept:
        longer = [other for p, other in kept if p == prompt and other != ids]
        assert not any(other[: len(ids)] == ids for other in longer)
    assert len(set(kept)) == len(kept)


def test_riders_share_errors_rows_stay_full():
    """An error reaches the riders and the rows are kept full."""
    shared = SharedScores()
    leader = scoring("a", (1,), (2, 3))
    (computed,) = shared.admit([scoring("b", (1,), (2,)), leader])
    assert computed == leader
    answers = shared.answer(refuse(leader, "why"))
    assert [(a.request_id, a.status, a.error) for a in answers] == [
        (name, "engine_error", "why") for name in "ab"
    ]
    assert shared.answer(refuse(leader, "why"))[1:] == []
    assert [room(256, held, bursts=False) for held in (0, 200, 256, 264, 300)] == [
        264,
        64,
        8,
        0,
        0,
    ]
    assert [room(256, held, bursts=True) for held in (0, 100, 224, 225, 256, 264)] == [
        256,
        156,
        32,
        0,
        0,
        0,
    ]
    assert [room(4, held, bursts=True) for held in (0, 3, 4)] == [4, 1, 0]


@given(rows=st.integers(1, 600), held=st.integers(0, 700))
def test_idle_engine_always_takes_requests(rows, held):
    taken = room(rows, held, bursts=True)
    assert taken > 0 or held > rows - max(1, rows // 8)
    assert taken + min(held, rows) <= rows
