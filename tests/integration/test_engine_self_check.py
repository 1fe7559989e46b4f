"""A real engine checks its forced scores when it starts: wrong ones are replaced, right ones are remembered."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from evaluator.engine import self_check
from evaluator.engine.base import FixedSource, Generate, LoadReport, Response, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.errors import EngineError
from tests.support.engines import needs_vllm
from tests.support.models import save_tiny_model

pytestmark = needs_vllm

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8)
ASKED = [
    Score(request_id="many", prompt_ids=(20, 21, 22), continuation_ids=(30, 31, 9, 77)),
    Score(request_id="one", prompt_ids=(20, 21, 22), continuation_ids=(30,)),
    Score(request_id="full", prompt_ids=tuple(range(20, 144)), continuation_ids=(30, 31, 9, 77)),  # all 128
    Generate(request_id="greedy", prompt_ids=(20, 21, 22), max_tokens=5),
]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "resurface" / "self-check"


def served(checkpoint: Path, config: EngineConfig = CONFIG) -> tuple[LoadReport, LoadReport, dict[str, Response]]:
    """The reports of a start and of a swap, and what was answered after both."""
    engine = VLLMEngine(config)
    try:
        reports = engine.load(checkpoint), engine.load(checkpoint)
        assert engine.stats().requests == 0  # the check's own are not counted
        return *reports, {response.request_id: response for response in engine.run(FixedSource(ASKED))}
    finally:
        engine.close()


@pytest.mark.parametrize("scoring", [pytest.param("forced", marks=pytest.mark.long), "prompt_logprobs"])
def test_an_engine_whose_prompt_log_probabilities_are_nonsense_is_not_used(scoring, tmp_path, cache, monkeypatch):
    from evaluator.engine.vllm.requests import InFlightPromptScore

    right = InFlightPromptScore.response

    def unwritten(self: InFlightPromptScore) -> Response:
        answer = right(self)
        return dataclasses.replace(answer, ranks=(0,) * len(answer.ranks))

    monkeypatch.setattr(InFlightPromptScore, "response", unwritten)
    with pytest.raises(EngineError, match="prompt log-probabilities hold a rank of 0 in a vocabulary of 384"):
        served(save_tiny_model(tmp_path / "model", "qwen3"), CONFIG.model_copy(update={"scoring": scoring}))
    assert not cache.exists()


def test_an_engine_that_ranks_by_vllm_s_rule_is_not_used(tmp_path, cache, monkeypatch):
    """vLLM counts the tokens that are at least as likely. A checkpoint without ties ranks alike by either rule."""
    from evaluator.engine.vllm import ranks

    monkeypatch.setattr(ranks, "_strict_ranks", lambda scores, values: (scores >= values).sum(-1))
    with pytest.raises(EngineError, match="cannot be trusted: of planted tokens, a token of rank 1 got 384"):
        served(save_tiny_model(tmp_path / "model", "qwen3"))
    assert not cache.exists()


def test_an_engine_that_reports_the_ranks_of_other_rows_is_not_used(tmp_path, cache, monkeypatch):
    """Each is right where it is counted, and is reported for another token."""
    from evaluator.engine.vllm.requests import InFlightPromptScore

    right = InFlightPromptScore.response

    def turned(self: InFlightPromptScore) -> Response:
        answer = right(self)
        return dataclasses.replace(answer, ranks=(*answer.ranks[1:], *answer.ranks[:1]))

    monkeypatch.setattr(InFlightPromptScore, "response", turned)
    with pytest.raises(
        EngineError, match=r"prompt log-probabilities hold a rank of \d+ where whole distributions have"
    ):
        served(save_tiny_model(tmp_path / "model", "qwen3"))
    assert not cache.exists()


def test_forced_scores_with_wrong_ranks_are_replaced(tmp_path, cache, monkeypatch):
    from evaluator.engine.vllm.requests import InFlightOneStepScore

    right = InFlightOneStepScore.response

    def turned(self: InFlightOneStepScore) -> Response:
        answer = right(self)
        return dataclasses.replace(answer, ranks=(*answer.ranks[1:], *answer.ranks[:1]))

    monkeypatch.setattr(InFlightOneStepScore, "response", turned)
    started, _, _ = served(save_tiny_model(tmp_path / "model", "qwen3"))
    assert started.notes[0].startswith("forced scores have a rank of ")
    assert started.scoring == "prompt_logprobs"


def test_wrong_scores_are_replaced_and_right_ones_remembered(tmp_path, cache, monkeypatch):
    checkpoint = save_tiny_model(tmp_path / "model", "qwen3", 0, eos_ids=(0,))
    oracle = TorchEngine(CONFIG)
    oracle.load(checkpoint)
    expected = {request.request_id: oracle.answer(request) for request in ASKED}

    with monkeypatch.context() as broken:
        from evaluator.engine.vllm.v1 import sampler

        right = sampler.Order.score
        broken.setattr(sampler.Order, "score", lambda token: right((token + 1) % 384))  # of the token beside
        started, swapped, answers = served(checkpoint)
    assert started.notes == swapped.notes
    (note,) = started.notes
    assert note.startswith("forced scores differ from prompt log-probabilities by up to ")
    assert note.endswith("scores are computed by prompt log-probabilities instead, which is slower")
    assert (started.scoring, started.setup["scoring"]) == ("prompt_logprobs", "by prompt log-probabilities")
    assert started.setup["self-check"] == "failed"
    assert not cache.exists()
    for name, answer in answers.items():
        assert answer.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)
        assert answer.token_ids == expected[name].token_ids

    started, swapped, answers = served(checkpoint)
    assert started.notes == swapped.notes == ()
    assert (started.scoring, started.setup["scoring"]) == ("forced", "in one step")
    assert (started.setup["runner"], started.setup["self-check"]) == ("V1", "passed")
    assert len(list(cache.iterdir())) == 1
    assert answers["many"].ranks == expected["many"].ranks

    def asks_again(*_: object) -> None:
        raise AssertionError("a combination that has passed is asked again")

    monkeypatch.setattr(self_check, "questions", asks_again)
    assert served(checkpoint)[0].setup["self-check"] == "not needed"
