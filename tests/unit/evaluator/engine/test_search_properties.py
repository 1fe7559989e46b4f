"""Beams and scores against brute force, where ties and shared beginnings are frequent."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.engine.admission import SharedScores
from evaluator.engine.base import Cancel, Generate, Request, Score
from evaluator.engine.beam import BeamSearch
from evaluator.engine.config import EngineConfig
from evaluator.engine.fake import FakeEngine, FakeLM
from evaluator.engine.torch_engine import TorchEngine
from tests.support.models import save_tiny_model
from tests.support.search import plain_beams

PROMPT = (5, 6)
VOCABULARY, EOS_IDS, CONTEXT = 12, (0, 7), 64  # of the tiny models
ROUNDING = 2e-5  # nats: what is closer may change places between two implementations in float32


class CoarseLM(FakeLM):
    """Log-probabilities are multiples of a half, so that sums are exact and sequences tie all the time. They are not
    normalised, which a search does not see."""

    def logprobs(self, prefix):
        return np.minimum(np.round(super().logprobs(prefix)) / 2, 0.0)


class Queue:
    """What a search asks for, given out a little at a time; it may keep cancels to itself, as an engine that is busy
    may answer what was cancelled, and not every engine streams."""

    def __init__(self, search: BeamSearch, seed: int) -> None:
        self._draw = random.Random(seed)
        self._streams, self._cancels = self._draw.random(), self._draw.random()
        self._search = search
        self.gathers = self._draw.random() < 0.5  # the search advances once for all that came before a `take`
        self._waiting: list[Request | Cancel] = []
        self.asked: list[Generate] = []
        self.add(search.start())

    def add(self, requests: Sequence[Request | Cancel]) -> None:
        for request in requests:
            if isinstance(request, Cancel):
                if self._draw.random() < self._cancels:
                    self._waiting.append(request)
                continue
            assert isinstance(request, Generate)
            self.asked.append(request)
            self._waiting.append(dataclasses.replace(request, stream=self._draw.random() < self._streams))

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        self.add(self._search.advance() if self.gathers else ())
        taken = self._waiting[: max(1, self._draw.randint(0, limit))] if limit else []
        del self._waiting[: len(taken)]
        return taken


def search_through(search: BeamSearch, answer, seed: int, room: int = 4) -> list[Generate]:
    """Run a search to its end; returns what it asked for."""
    queue = Queue(search, seed)
    for response in FakeEngine(answer, reorder_seed=seed, room=room).run(queue):
        if queue.gathers:
            search.add(response)
        else:
            queue.add(search.receive(response))
    assert search.done
    return queue.asked


@settings(deadline=None, max_examples=500, derandomize=True)
@given(
    seed=st.integers(0, 100_000),
    vocabulary=st.integers(2, 7),
    width=st.integers(1, 6),
    max_tokens=st.integers(1, 7),
    eos=st.sets(st.integers(0, 6), max_size=3),
    also=st.sets(st.integers(0, 6), max_size=1),
    sharpness=st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    room=st.integers(1, 9),
)
def test_beams_equal_a_plain_search_where_everything_ties(
    seed, vocabulary, width, max_tokens, eos, also, sharpness, room
):
    eos_ids = frozenset(token for token in eos if token < vocabulary)
    # The engine may stop at an EOS that the search does not know, and need not know those that it does.
    theirs = (eos_ids if seed % 3 else frozenset()) | also
    lm = CoarseLM(vocabulary=vocabulary, eos_ids=theirs, seed=seed, sharpness=sharpness)
    search = BeamSearch("b", PROMPT, width=width, max_tokens=max_tokens, eos_ids=eos_ids)
    asked = search_through(search, lm.answer, seed, room)
    found = plain_beams(
        lambda prefixes: np.stack([lm.logprobs(prefix) for prefix in prefixes]),
        PROMPT,
        width=width,
        max_tokens=max_tokens,
        eos_ids=eos_ids,
    )
    assert [(h.token_ids, h.logprob) for h in search.hypotheses()] == found.beams
    assert all(h.score == h.logprob / len(h.token_ids) for h in search.hypotheses())
    assert all(len(r.prompt_ids) + r.max_tokens == len(PROMPT) + max_tokens for r in asked)  # never past the context
    assert len({r.prompt_ids for r in asked}) == len(asked) or theirs != eos_ids


@dataclasses.dataclass
class Tiny:
    """A random model of twelve tokens behind the oracle, and the model itself."""

    engine: TorchEngine
    model: Any

    def distributions(self, prefixes: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Next-token log-probabilities by one full forward pass, [prefix, token]."""
        with torch.inference_mode():
            return self.model(torch.tensor(prefixes)).logits[:, -1].log_softmax(-1).double().numpy()


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> list[Tiny]:
    from transformers import AutoModelForCausalLM

    made = []
    for seed in range(3):
        checkpoint = save_tiny_model(
            tmp_path_factory.mktemp("tiny") / str(seed), seed=seed, eos_ids=EOS_IDS, vocabulary=VOCABULARY
        )
        engine = TorchEngine(EngineConfig(kind="torch", max_model_len=CONTEXT))
        engine.load(checkpoint)
        made.append(Tiny(engine, AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()))
    return made


prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20).map(tuple)


@settings(deadline=None, max_examples=15, derandomize=True)
@given(number=st.integers(0, 2), prompt=prompts, width=st.integers(1, 5), max_tokens=st.integers(1, 6))
def test_beams_over_the_oracle_equal_a_plain_search_over_full_passes(tinies, number, prompt, width, max_tokens):
    tiny = tinies[number]
    search = BeamSearch("b", prompt, width=width, max_tokens=max_tokens, eos_ids=frozenset(EOS_IDS))
    search_through(search, tiny.engine.answer, seed=len(prompt))
    found = plain_beams(tiny.distributions, prompt, width=width, max_tokens=max_tokens, eos_ids=frozenset(EOS_IDS))
    for hypothesis, (ids, total) in zip(search.hypotheses(), found.beams, strict=True):
        assert hypothesis.token_ids == ids or found.closest < ROUNDING
        assert hypothesis.logprob == pytest.approx(total, abs=1e-4) or found.closest < ROUNDING


# Three tokens only: options repeat each other, begin alike, and are each other's beginnings.
options = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)


@settings(deadline=None, max_examples=12, derandomize=True)
@given(number=st.integers(0, 2), prompt=prompts, options=options)
def test_options_that_share_a_computation_score_as_each_alone(tinies, number, prompt, options):
    tiny = tinies[number]
    asked = [Score(request_id=str(n), prompt_ids=prompt, continuation_ids=ids) for n, ids in enumerate(options)]
    shared = SharedScores()
    computed = shared.admit(asked)
    answers = {a.request_id: a for request in computed for a in shared.answer(tiny.engine.answer(request))}
    assert len(computed) <= len(set(options))
    for request in asked:
        ids = request.continuation_ids
        rows = np.concatenate([tiny.distributions([prompt + ids[:step]]) for step in range(len(ids))])
        own = rows[range(len(ids)), ids]
        answer = answers[request.request_id]
        assert answer.token_ids == ids
        assert answer.logprobs == pytest.approx(own.tolist(), abs=1e-4)
        fewest, most = ((rows > (own + slack)[:, None]).sum(1) + 1 for slack in (ROUNDING, -ROUNDING))
        assert all(low <= rank <= max(low, high) for low, rank, high in zip(fewest, answer.ranks, most, strict=True))
        assert [top for (top,) in answer.top_logprobs] == pytest.approx(rows.max(1).tolist(), abs=1e-4)


@pytest.mark.parametrize("room", [-1, 0, 1])
@pytest.mark.parametrize("more", [1, 5])
def test_the_context_is_filled_to_its_last_token_and_not_past_it(tinies, room, more):
    prompt = tuple(np.random.default_rng(room + more).integers(1, VOCABULARY, CONTEXT - more - room).tolist())
    tiny = tinies[0]
    search = BeamSearch("b", prompt, width=3, max_tokens=more, eos_ids=frozenset(EOS_IDS))
    search_through(search, tiny.engine.answer, seed=1)
    score = tiny.engine.answer(Score(request_id="s", prompt_ids=prompt, continuation_ids=(3,) * more))
    if room < 0:
        why = f"{len(prompt)} prompt tokens and {more} more do not fit the engine's {CONTEXT} (max_model_len)"
        assert (search.error, search.hypotheses()) == (why, ())
        assert (score.status, score.error, score.logprobs) == ("engine_error", why, ())
    else:
        found = plain_beams(tiny.distributions, prompt, width=3, max_tokens=more, eos_ids=frozenset(EOS_IDS))
        assert [h.token_ids for h in search.hypotheses()] == [ids for ids, _ in found.beams]
        assert score.status == "ok"


def test_an_empty_prompt_is_refused_in_words_and_not_given_a_token_of_ours(tinies):
    search = BeamSearch("b", (), width=3, max_tokens=4, eos_ids=frozenset(EOS_IDS))
    search_through(search, tinies[0].engine.answer, seed=1)
    assert (search.error, search.hypotheses()) == ("the prompt is empty", ())
    score = tinies[0].engine.answer(Score(request_id="s", prompt_ids=(), continuation_ids=(3,)))
    assert (score.status, score.error) == ("engine_error", "the prompt is empty")
