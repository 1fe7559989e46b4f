"""The two sides are compared answer by answer, by item and option; an answer that
one side lacks is named."""

import pytest

from benchmarks.serving import beam, checkpoint_pass, score, swap


def scores(**items):
    return {
        "scores": {
            item: {str(n): value for n, value in enumerate(values)}
            for item, values in items.items()
        }
    }


def test_scores_greedy_answers_and_beams_are_compared_by_item_in_any_order():
    ours, theirs = scores(a=[-1.0, -2.0], b=[-3.0]), scores(b=[-3.0005], a=[-1.0, -2.0])
    agreement = score.agree(ours, theirs)
    assert agreement.holds
    assert (
        agreement.how
        == "3 log-likelihoods within 0.001 nats or 5e-05 of them (largest difference"
        " 5.0e-04 nats)"
    )
    other = score.agree(ours, scores(a=[-1.0, -2.0], b=[-3.1]))
    assert not other.holds
    assert other.how.startswith("1 of 3 log-likelihoods not within")
    ours = {**scores(a=[-1.0]), "greedy": {"a": [1, 2], "b": [3]}}
    assert checkpoint_pass.agree(ours, ours).holds
    other = checkpoint_pass.agree(ours, {**ours, "greedy": {"a": [1, 2], "b": [4]}})
    assert not other.holds
    assert other.how.startswith(
        "greedy answers identical for 1 of 2 items; 1 log-likelihoods"
    )
    lacking = checkpoint_pass.agree(ours, {**ours, "greedy": {"a": [1, 2]}})
    assert not lacking.holds
    assert "theirs lacks 1 of 2 answers, the first of b" in lacking.how
    ours = {"beams": {"a": [[[1], -1.0], [[2], -2.0]], "b": [[[3], -1.0]]}}
    assert beam.agree_without_eos(
        ours, {"beams": dict(reversed(ours["beams"].items()))}
    ).holds
    lacking = beam.agree_without_eos(ours, {"beams": {"a": ours["beams"]["a"]}})
    assert (lacking.holds, lacking.how) == (
        False,
        "EOS ignored: theirs lacks 1 of 2 answers, the first of b",
    )


def test_bfloat16_has_tolerances_of_its_own():
    ours, theirs = {**scores(a=[-30.0]), "dtype": "bfloat16"}, scores(a=[-30.8])
    assert score.agree(ours, theirs).holds
    assert not score.agree(ours, scores(a=[-32.0])).holds
    assert not score.agree({**ours, "dtype": "float32"}, theirs).holds
    one, other = {**ours, "greedy": {"a": [1, 2]}}, {**theirs, "greedy": {"a": [1, 3]}}
    assert checkpoint_pass.agree(one, other).holds
    assert not checkpoint_pass.agree(
        {**one, "dtype": "float32", **scores(a=[-30.8])}, other
    ).holds
    assert swap.agree(
        {"logprobs": [-1.0], "dtype": "bfloat16"}, {"logprobs": [-1.05]}
    ).holds
    assert not swap.agree(
        {"logprobs": [-1.0], "dtype": "bfloat16"}, {"logprobs": [-1.2]}
    ).holds
    assert not swap.agree(
        {"logprobs": [-1.0], "dtype": "float32"}, {"logprobs": [-1.05]}
    ).holds


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (
            {"a": [-1.0, -2.0]},
            {"a": [-1.0]},
            "theirs lacks 1 of 2 answers, the first of a, option 1",
        ),
        (
            {"a": [-1.0]},
            {"a": [-1.0], "b": [-1.0]},
            "ours lacks 1 of 2 answers, the first of b, option 0",
        ),
        ({}, {}, "no log-likelihood to compare"),
    ],
)
def test_a_missing_score_is_no_agreement_and_is_named(ours, theirs, said):
    agreement = score.agree(scores(**ours), scores(**theirs))
    assert (agreement.holds, agreement.how) == (False, said)
