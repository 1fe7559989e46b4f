"""BeamSearch against a slow, literal port of transformers' algorithm, on pseudo-random models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.engine.base import Cancel, Response
from evaluator.engine.beam import BeamSearch
from evaluator.engine.fake import FakeEngine, FakeLM
from tests.support.engines import Waiting

NEVER = -1.0e9


def transformers_beams(lm: FakeLM, prompt: tuple[int, ...], width: int, max_tokens: int) -> list[tuple[int, ...]]:
    """`GenerationMixin._beam_search` of transformers 5.19 in float64, tensor operation by tensor operation."""
    running: list[tuple[int, ...]] = [()] * width
    running_scores = np.array([0.0] + [NEVER] * (width - 1))
    finished: list[tuple[int, ...]] = [()] * width
    scores = np.full(width, NEVER)
    is_finished = np.zeros(width, dtype=bool)
    keep = max(2, 1 + len(lm.eos_ids)) * width
    for length in range(1, max_tokens + 1):
        totals = np.concatenate(
            [lm.logprobs(prompt + ids) + score for ids, score in zip(running, running_scores, strict=True)]
        )
        top = np.argsort(-totals, kind="stable")[:keep]
        sequences = [(*running[i // lm.vocabulary], int(i % lm.vocabulary)) for i in top]
        hits = np.array([length == max_tokens or ids[-1] in lm.eos_ids for ids in sequences])
        going_on = totals[top] + hits * NEVER
        best = np.argsort(-going_on, kind="stable")[:width]
        running, running_scores = [sequences[i] for i in best], going_on[best]
        just_finished = hits & (np.arange(keep) < width)
        merged_scores = np.concatenate([scores, totals[top] / length + ~just_finished * NEVER])
        merged = finished + sequences
        merged_is_finished = np.concatenate([is_finished, just_finished])
        order = np.argsort(-merged_scores, kind="stable")[:width]
        finished, scores, is_finished = [merged[i] for i in order], merged_scores[order], merged_is_finished[order]
        worst = np.where(is_finished, scores.min(), NEVER)
        if hits.all() or not (running_scores[0] / length > worst).any():
            break
    return finished


def drive(search: BeamSearch, lm: FakeLM, reorder_seed: int | None = 0, room: int = 3) -> int:
    """Run a search to its end; returns how many requests it took."""
    source = Waiting(search.start())
    asked = {request.request_id for request in source.requests}
    for response in FakeEngine(lm.answer, reorder_seed=reorder_seed, room=room).run(source):
        for request in search.receive(response):
            assert isinstance(request, Cancel) == (request.request_id in asked)
            asked.add(request.request_id)
            source.requests.append(request)
    return len(asked)


def make(lm: FakeLM, width: int, max_tokens: int) -> BeamSearch:
    return BeamSearch("b", (5, 6), width=width, max_tokens=max_tokens, eos_ids=lm.eos_ids)


@settings(deadline=None, max_examples=150)
@given(
    model_seed=st.integers(0, 10_000),
    width=st.integers(1, 6),
    max_tokens=st.integers(1, 9),
    eos=st.sets(st.integers(0, 23), max_size=3),
    sharpness=st.sampled_from([0.5, 2.0, 5.0]),
    room=st.integers(1, 9),
)
def test_equals_transformers_algorithm(model_seed, width, max_tokens, eos, sharpness, room):
    lm = FakeLM(vocabulary=24, eos_ids=frozenset(eos), seed=model_seed, sharpness=sharpness)
    search = make(lm, width, max_tokens)
    drive(search, lm, reorder_seed=model_seed, room=room)
    hypotheses = search.hypotheses()
    assert [h.token_ids for h in hypotheses] == transformers_beams(lm, (5, 6), width, max_tokens)
    for hypothesis in hypotheses:
        prefix: tuple[int, ...] = (5, 6)
        total = 0.0
        for token in hypothesis.token_ids:
            total += float(lm.logprobs(prefix)[token])
            prefix = (*prefix, token)
        assert hypothesis.logprob == pytest.approx(total, abs=1e-9)
        assert hypothesis.score == pytest.approx(total / len(hypothesis.token_ids), abs=1e-9)


def test_takes_fewer_requests_than_one_per_prefix_and_step():
    lm = FakeLM(vocabulary=32, eos_ids=frozenset(), seed=7, sharpness=6.0)
    search = make(lm, 5, 32)
    assert drive(search, lm) < 5 * 32 * 0.6


def test_an_engine_error_ends_the_search_without_hypotheses():
    lm = FakeLM(vocabulary=32)
    search = make(lm, 4, 6)
    request = search.start()[0]
    assert search.receive(Response(request_id=request.request_id, status="engine_error", error="too long")) == []
    assert search.done
    assert search.error == "too long"
    assert search.hypotheses() == ()


def test_late_responses_are_ignored():
    lm = FakeLM(vocabulary=32, eos_ids=frozenset(), seed=5, sharpness=2.0)
    search = make(lm, 4, 8)
    waiting = search.receive(lm.answer(search.start()[0]))
    failed, late = waiting[0], waiting[1]
    search.receive(Response(request_id=failed.request_id, status="engine_error"))
    assert search.receive(lm.answer(late)) == []
    assert search.error == "engine_error"


@pytest.mark.parametrize(("width", "max_tokens"), [(0, 4), (3, 0)])
def test_impossible_sizes_are_refused(width, max_tokens):
    with pytest.raises(ValueError, match=f"width={width}, max_tokens={max_tokens}"):
        make(FakeLM(), width, max_tokens)
