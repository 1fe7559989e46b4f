"""The two sides are compared answer by answer, by item and option; an answer that
one side lacks is named."""

import pytest

from benchmarks.serving import agreement, swap


def scores(**items):
    by_item = {}
    for item, values in items.items():
        by_item[item] = {str(number): value for number, value in enumerate(values)}
    return {"scores": by_item}


HALF = {"dtype": "bfloat16"}
BEAMS = {"a": [[[1], -1.0], [[2], -2.0]], "b": [[[3], -1.0]]}
WHOLE = {**scores(a=[-1.0]), "greedy": {"a": [1, 2], "b": [3]}}
OTHER = {**WHOLE, "greedy": {"a": [1, 2], "b": [4]}}
CASES = {
    "scores in any order": (
        agreement.scores,
        scores(a=[-1.0, -2.0], b=[-3.0]),
        scores(b=[-3.0005], a=[-1.0, -2.0]),
        "3 log-likelihoods within 0.001 nats or 5e-05 of them (largest difference"
        " 5.0e-04 nats)",
    ),
    "answers": (agreement.answers, WHOLE, WHOLE, "greedy answers identical for 2 of 2"),
    "half-precision answers": (
        agreement.answers,
        {**WHOLE, **HALF},
        OTHER,
        "greedy answers identical for 1 of 2 items; 1 log-likelihoods",
    ),
    "beams in any order": (
        agreement.beams_without_eos,
        {"beams": BEAMS},
        {"beams": dict(reversed(BEAMS.items()))},
        "EOS ignored: best beam identical for 2, all five for 2 of 2 items",
    ),
}
APART = {
    "another score": (
        agreement.scores,
        scores(a=[-1.0, -2.0], b=[-3.0]),
        scores(a=[-1.0, -2.0], b=[-3.1]),
        "1 of 3 log-likelihoods not within",
    ),
    "no score": (
        agreement.scores,
        scores(a=[-1.0, -2.0]),
        scores(a=[-1.0]),
        "theirs lacks 1 of 2 answers, the first of a, option 1",
    ),
    "nothing": (agreement.scores, scores(), scores(), "no log-likelihood to compare"),
    "another answer": (
        agreement.answers,
        WHOLE,
        OTHER,
        "greedy answers identical for 1 of 2 items",
    ),
    "no answer": (
        agreement.answers,
        WHOLE,
        {**WHOLE, "greedy": {"a": [1, 2]}},
        "greedy answers identical for 1 of 2 items (theirs lacks 1 of 2 answers, the"
        " first of b)",
    ),
    "no beams": (
        agreement.beams_without_eos,
        {"beams": BEAMS},
        {"beams": {"a": BEAMS["a"]}},
        "EOS ignored: theirs lacks 1 of 2 answers, the first of b",
    ),
    "another swap": (
        swap.agree,
        {"logprobs": [-1.0]},
        {"logprobs": [-1.05]},
        "log-likelihoods within 1e-05",
    ),
    "another half-precision swap": (
        swap.agree,
        {"logprobs": [-1.0], **HALF},
        {"logprobs": [-1.2]},
        "log-likelihoods within 0.1",
    ),
}


@pytest.mark.parametrize("case", [*CASES, *APART])
def test_sides_are_compared_by_answer(case):
    agree, ours, theirs, how = (CASES | APART)[case]
    found = agree(ours, theirs)
    assert found.holds == (case in CASES)
    assert found.how.startswith(how)
