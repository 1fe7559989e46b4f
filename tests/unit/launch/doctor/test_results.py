"""Distances that only the doctor measures, and answers that are no evidence."""

import pytest

from evaluator.engine.base import Response
from evaluator.engine.beam import Hypothesis
from evaluator.engine.comparisons import DisagreementError
from launch.doctor.checks import CHECKS
from launch.doctor.results import (
    NotHereError,
    Results,
    RunResult,
    of_beam_scores,
    of_beams,
    of_greedy,
    of_twin_ranks,
)


def greedy(*ids: int, logprobs=None, second=99, behind=1.0) -> dict[str, Response]:
    """Every step lists its own token and a second one, so many nats behind."""
    values = tuple(logprobs or [-0.5] * len(ids))
    answer = Response(
        request_id="a",
        token_ids=ids,
        logprobs=values,
        top_ids=tuple((token, second) for token in ids),
        top_logprobs=tuple((value, value - behind) for value in values),
    )
    return {"a": answer}


def test_greedy_ties_are_close():
    ours = greedy(7, 8)
    assert of_greedy(ours, greedy(7, 8, logprobs=(-0.5, -0.75))) == [0, 0.25]
    tied = greedy(7, 8, second=9, behind=0.25)
    assert of_greedy(tied, greedy(7, 9, 3)) == [0, 0.25]
    # not listed: at least as far as the last
    assert of_greedy(ours, greedy(7, 9, 3)) == [0, 1.0]
    with pytest.raises(DisagreementError, match="ended after 2 tokens"):
        of_greedy(ours, greedy(7, 8, 9))


def test_even_ranks_of_twins_are_wrong():
    answer = Response(request_id="a", token_ids=(4, 5), ranks=(1, 8))
    assert of_twin_ranks({"a": answer}) == [0, 1]


def test_beams_are_compared_by_place():
    ours = {"p": (Hypothesis(token_ids=(4, 0), logprob=-1.0, score=-0.5),)}
    theirs = {"p": (Hypothesis(token_ids=(5, 0), logprob=-1.5, score=-0.75),)}
    assert of_beams(ours, theirs) == [0.25]
    answer = Response(request_id="p/0", token_ids=(4, 0), logprobs=(-0.25, -0.25))
    assert of_beam_scores(ours, {"p/0": answer}) == [0.25]
    with pytest.raises(DisagreementError, match="p: beam 0 was not scored"):
        of_beam_scores(ours, {})
    with pytest.raises(DisagreementError, match="no beam was found"):
        of_beam_scores({}, {})
    with pytest.raises(DisagreementError, match="other prompts"):
        of_beams(ours, {})


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ("one", "one: no GPU left"),
        ("two", "two: no answer of stage 'dense'"),
        ("three", "it did not run"),
    ],
)
def test_missing_answers_are_no_evidence(run, why):
    with pytest.raises(DisagreementError, match=why):
        Results({"one": "no GPU left", "two": RunResult()}).answers(run, "dense")


@pytest.mark.parametrize(
    ("self_check", "error"), [("failed", DisagreementError), ("passed", NotHereError)]
)
def test_only_forced_scores_are_compared(self_check, error):
    result = RunResult(
        scoring="prompt_logprobs", notes=("why",), facts={"self-check": self_check}
    )
    with pytest.raises(error, match="why"):
        Results({"run": result}).forced("run")
    assert Results({"run": RunResult()}).forced("run") == RunResult()


@pytest.mark.parametrize(
    ("graphs", "status", "why"),
    [
        ("NONE", "skipped", "vLLM uses none for this model and device"),
        ("FULL", "fail", "served: no answer of stage 'dense'"),
    ],
)
def test_only_graphs_in_use_are_compared(graphs, status, why):
    (check,) = (each for each in CHECKS if each.name == "CUDA graphs")
    by_run = {"served": RunResult(facts={"graphs": graphs}), "eager": RunResult()}
    found = check.compare(Results(by_run), "half", {})
    assert (found.status, found.why) == (status, why)
