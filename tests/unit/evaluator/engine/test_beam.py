"""Beams against brute force, where ties are frequent; against transformers:
tests/support/engines.py."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evaluator.engine.base import Cancel, Generate, Request, Response
from evaluator.engine.beam import BeamSearch
from tests.support.fake import FakeEngine, FakeLM

Tokens = tuple[int, ...]
PROMPT = (5, 6)


def plain_beams(lm, prompt, *, width, max_tokens, eos_ids):
    """Every step looks at every continuation of every live prefix. Ids and summed
    log-probabilities, best first."""
    live: list[tuple[float, Tokens]] = [(0.0, ())]
    finished: list[tuple[float, float, Tokens]] = []  # score, sum, ids
    for length in range(1, max_tokens + 1):
        everything = [
            (total + float(row[token]), (*ids, int(token)))
            for total, ids in live
            for row in [lm.logprobs(prompt + ids)]
            for token in np.argsort(-row, kind="stable")
        ]
        # stable: to the better prefix, then the lower id
        everything.sort(key=lambda candidate: -candidate[0])
        ends = [length == max_tokens or ids[-1] in eos_ids for _, ids in everything]
        best = [
            (total, ids)
            for (total, ids), end in list(zip(everything, ends, strict=True))[:width]
            if end
        ]
        finished += [(total / length, total, ids) for total, ids in best]
        finished.sort(key=lambda beam: -beam[0])
        del finished[width:]
        live = [
            candidate
            for candidate, end in zip(everything, ends, strict=True)
            if not end
        ][:width]
        done = (
            len(finished) == width
            and live
            and (width == 1 or live[0][0] / length <= finished[-1][0])
        )
        if done or not live:
            break
    return [(ids, total) for _, total, ids in finished]


class CoarseLM(FakeLM):
    """Log-probabilities are multiples of a half, so that sums are exact and
    sequences tie all the time."""

    def logprobs(self, prefix):
        return np.minimum(np.round(super().logprobs(prefix)) / 2, 0.0)


class Queue:
    """Gives requests out a little at a time. It may lose cancels, as a busy engine
    does, and need not stream."""

    def __init__(self, search, seed):
        self._draw = random.Random(seed)
        self._streams, self._cancels = self._draw.random(), self._draw.random()
        self._search = search
        # the search advances also before each response
        self._eager = self._draw.random() < 0.5
        self._waiting: list[Request | Cancel] = []
        self.asked: list[Generate] = []
        self._responses: list[Response] = []
        self.add(search.start())

    def add(self, requests):
        for request in requests:
            if isinstance(request, Cancel):
                if self._draw.random() < self._cancels:
                    self._waiting.append(request)
                continue
            assert isinstance(request, Generate)
            self.asked.append(request)
            streams = self._draw.random() < self._streams
            self._waiting.append(request if streams else replace(request, stream=None))

    def take(self, limit):
        self.add(self._search.advance(self._responses))
        self._responses = []
        taken = self._waiting[: max(1, self._draw.randint(0, limit))] if limit else []
        del self._waiting[: len(taken)]
        return taken

    def handle(self, response):
        self._responses.append(response)
        if self._eager:
            self.add(self._search.advance(self._responses))
            self._responses = []


def search_through(search, answer, seed, room=4):
    queue = Queue(search, seed)
    for response in FakeEngine(answer, reorder_seed=seed, room=room).run(queue):
        queue.handle(response)
    search.advance(queue._responses)
    assert search.done
    return queue.asked


@settings(deadline=None, max_examples=250, derandomize=True)
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
def test_beams_equal_plain_search_with_ties(
    seed, vocabulary, width, max_tokens, eos, also, sharpness, room
):
    eos_ids = frozenset(token for token in eos if token < vocabulary)
    # The engine may stop at an EOS that the search does not know, and need not know
    # those that it does.
    theirs = (eos_ids if seed % 3 else frozenset()) | also
    lm = CoarseLM(vocabulary=vocabulary, eos_ids=theirs, seed=seed, sharpness=sharpness)
    search = BeamSearch(
        "b", PROMPT, width=width, max_tokens=max_tokens, eos_ids=eos_ids
    )
    asked = search_through(search, lm.answer, seed, room)
    found = plain_beams(lm, PROMPT, width=width, max_tokens=max_tokens, eos_ids=eos_ids)
    assert [(h.token_ids, h.logprob) for h in search.hypotheses()] == found
    assert all(h.score == h.logprob / len(h.token_ids) for h in search.hypotheses())
    # never past the context
    assert all(
        len(r.prompt_ids) + r.max_tokens == len(PROMPT) + max_tokens for r in asked
    )
    assert len({r.prompt_ids for r in asked}) == len(asked) or theirs != eos_ids


def make(lm, width, max_tokens):
    return BeamSearch(
        "b", PROMPT, width=width, max_tokens=max_tokens, eos_ids=lm.eos_ids
    )


def test_search_requests_few():
    """One request for each prefix would be 160."""
    lm = FakeLM(vocabulary=32, eos_ids=frozenset(), seed=7, sharpness=6.0)
    assert len(search_through(make(lm, 5, 32), lm.answer, seed=0, room=3)) < 96


def test_error_ends_search():
    lm = FakeLM(vocabulary=32, eos_ids=frozenset(), seed=5, sharpness=2.0)
    search = make(lm, 4, 8)
    failed, late = search.advance([lm.answer(search.start()[0])])[:2]
    error = Response(
        request_id=failed.request_id, status="engine_error", error="too long"
    )
    search.advance([error])
    assert search.advance([lm.answer(late)]) == []
    assert (search.done, search.error, search.hypotheses()) == (True, "too long", ())
