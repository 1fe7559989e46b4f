"""A served model's numbers are the model's own: a fake server's are known exactly."""

import itertools
import threading

import pytest

from evaluator.core.errors import EngineError
from evaluator.engine.base import TOO_LONG, UNABLE, Cancel, Reference
from evaluator.engine.endpoint.llama import _placed
from tests.support.engines import answers
from tests.support.fake import FakeEngine
from tests.support.requests import generation, scoring
from tests.support.served import EOS, EndingLM, FakeServer, endpoint_engine

DIALECTS = ["llama", "vllm"]
PROMPT = (5, 6, 7)
REQUESTS = [
    generation("greedy", PROMPT, 30),
    generation("another", (9, 11), 30),
    generation("tops", PROMPT, 8, top_logprobs=5),
    generation("sample", PROMPT, 12, temperature=1.0, top_p=0.9, seed=2**31 + 5),
    generation("hot", PROMPT, 12, temperature=1.7, top_p=0.5, seed=3),
    scoring("score", PROMPT, (40, 41, 42)),
    scoring("ranked", PROMPT, (40, 41), ranked=True),
    scoring("likely", PROMPT, (0, 8), ranked=True),
]


def own_answers(lm, requests):
    return answers(FakeEngine(lm.answer), requests)


def assert_equal(found, expected):
    """To the last bit; a server may rank the first token alone."""
    assert found.keys() == expected.keys()
    for name, answer in expected.items():
        own = found[name]
        assert (own.status, own.error) == ("ok", None), name
        assert own.token_ids == answer.token_ids, name
        assert own.logprobs == pytest.approx(answer.logprobs, abs=1e-12)
        assert own.top_ids == answer.top_ids
        assert own.ranks == answer.ranks[: len(own.ranks)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_answers_are_the_models(dialect):
    server = FakeServer(dialect)
    with endpoint_engine(server) as engine:
        found = answers(engine, REQUESTS)
    assert_equal(found, own_answers(server.lm, REQUESTS))
    assert found["ranked"].ranks[0] > 64
    assert found["likely"].ranks
    assert any(answer.token_ids[-1] in EOS for answer in found.values())


class Cancelling:
    """Cancels every second request when the first answer is there."""

    def __init__(self):
        self.waiting = [generation(number, (5, number), 2) for number in range(8)]
        self.cancelled = threading.Event()

    def take(self, limit):
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        if any(isinstance(each, Cancel) for each in taken):
            self.cancelled.set()
        return taken

    def cancel(self):
        self.waiting += [Cancel(request_id=str(number)) for number in range(1, 8, 2)]


def test_cancelled_requests_have_no_answer():
    server, source = FakeServer(), Cancelling()
    turns = itertools.count()
    with endpoint_engine(server) as engine:
        server.before = lambda handler: next(turns) and not source.cancelled.wait()
        found = []
        for answer in engine.run(source):
            if not found:
                source.cancel()
            found.append(answer.request_id)
        again = answers(engine, REQUESTS)
    assert {"0", "2", "4", "6"} <= set(found)
    assert len(found) <= 5
    assert again.keys() == {request.request_id for request in REQUESTS}


def test_distributions_are_the_models(tmp_path):
    base, server = EndingLM(seed=1), FakeServer()
    file = str(tmp_path / "kept.safetensors")
    kept = scoring("kept", PROMPT, (40, 41), reference=Reference(path=file, keep=True))
    compared = scoring(
        "compared", PROMPT, (40, 41), reference=Reference(path=file, keep=False)
    )
    assert own_answers(base, [kept])["kept"].status == "ok"
    expected = own_answers(server.lm, [compared])["compared"]
    with endpoint_engine(server) as engine:
        found = answers(engine, [compared])["compared"]
    assert found.ranks == expected.ranks
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-12)
    for own, theirs in zip(found.divergences, expected.divergences, strict=True):
        assert own == pytest.approx(theirs, abs=1e-5)


def test_distributions_of_vllm_are_excluded(tmp_path):
    reference = Reference(path=str(tmp_path / "kept"), keep=True)
    with endpoint_engine(FakeServer("vllm")) as engine:
        found = answers(engine, [scoring("kept", PROMPT, (40,), reference=reference)])
    assert found["kept"].error.endswith(UNABLE)


def test_reported_tokens_find_their_places():
    """Where all ways to place them agree."""
    for new in itertools.product(range(2), repeat=5):
        for kept in itertools.product((True, False), repeat=5):
            ids = list(itertools.compress(new, kept))
            ways = [
                places
                for places in itertools.combinations(range(5), len(ids))
                if [new[place] for place in places] == ids
            ]
            agreed = [set(places) for places in zip(*ways, strict=True)]
            certain = {
                place for places in agreed if len(places) == 1 for place in places
            }
            placed = _placed([{"id": token} for token in ids], new)
            assert placed == {place: {"id": new[place]} for place in certain}
    with pytest.raises(EngineError, match="other tokens"):
        _placed([{"id": 1}, {"id": 0}], (0, 1))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("ends", [frozenset(), frozenset({3, 17})])
def test_the_bases_ends_count(dialect, ends):
    """Other ones of the server neither cut an answer short nor prolong it."""
    server = FakeServer(dialect, EndingLM(stops=(3, 17, 99)))
    server.ends = ends
    asked = [
        generation(number, (5, number), 20, top_logprobs=number % 2, stop_ids=stop_ids)
        for number, stop_ids in enumerate([(), (), (99,), (99,)] * 3)
    ]
    expected = own_answers(server.lm, asked)
    seen = {token for answer in expected.values() for token in answer.token_ids}
    assert {0, 3, 17, 99} <= seen
    with endpoint_engine(server) as engine:
        assert_equal(answers(engine, asked), expected)


def test_texts_have_greedy_answers_alone():
    server = FakeServer("openai")
    prompt = tuple(server._tokenizer("The capital of France")["input_ids"])
    asked = [
        generation("greedy", prompt, 5, top_logprobs=1),
        scoring("score", prompt, (5,)),
    ]
    with endpoint_engine(server) as engine:
        found = answers(engine, asked)
    text = server._tokenizer.decode(found["greedy"].token_ids)
    own = own_answers(server.lm, asked)["greedy"].token_ids
    assert text == server._tokenizer.decode(own)
    assert found["greedy"].top_ids == ()
    assert found["score"].error.endswith(UNABLE)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_impossible_requests_are_refused(dialect):
    server = FakeServer(dialect)
    server.context = 64
    asked = [
        generation("long", range(1, 60), 10),
        generation("fits", range(1, 54), 10),
        generation("outside", (5, 3072), 5),
        scoring("outside too", PROMPT, (3072,)),
        generation("empty", (), 5),
    ]
    with endpoint_engine(server) as engine:
        found = answers(engine, asked)
    assert found["long"].error.endswith(TOO_LONG)
    assert found["fits"].status == "ok"
    assert "outside the vocabulary" in found["outside"].error
    assert "outside the vocabulary" in found["outside too"].error
    assert found["empty"].status == "engine_error"


@pytest.mark.parametrize(
    ("dialect", "slots", "most"), [("llama", 64, 8), ("vllm", 64, 8), ("llama", 3, 3)]
)
def test_concurrency_is_used(dialect, slots, most):
    """And no more."""
    server = FakeServer(dialect, EndingLM(lift=9.0))
    server.slots = slots
    asked = [generation(number, (5, number), 2) for number in range(30)]
    with endpoint_engine(server, concurrency=8) as engine:
        server.wait_for(most)
        found = answers(engine, asked)
    assert len(found) == engine.stats().requests == 30
    assert server.most_in_flight == most


# of which 24 (18) are the fingerprint and its scores, now and at the load
@pytest.mark.parametrize(
    ("dialect", "most"), [("llama", 72), ("vllm", 66), ("openai", 56)]
)
def test_few_requests_examine(dialect, most):
    server = FakeServer(dialect)
    with endpoint_engine(server):
        pass
    assert sum("completion" in path for path, *_ in server.asked) <= most
