"""Servers that lie: each answer is right, or there is none and a reason."""

import contextlib
import itertools
import json
import random
import shutil

import numpy as np
import pytest

from evaluator.checkpoints.served import Endpoint, read_served
from evaluator.checkpoints.tokenizer import eos_ids_of
from evaluator.core.errors import EngineError, InputError
from evaluator.engine.base import TOO_LONG, UNABLE
from evaluator.engine.beam import BeamSearch
from evaluator.engine.endpoint import engine as engine_module
from evaluator.engine.endpoint.engine import _notes
from evaluator.engine.endpoint.prepare import prepare_endpoint
from evaluator.probes.item import failed
from tests.support.engines import answers
from tests.support.fake import FakeEngine, FakeLM
from tests.support.requests import generation, scoring
from tests.support.served import (
    BASE,
    EOS,
    VOCABULARY,
    AveragingLM,
    EndingLM,
    FakeServer,
    endpoint_engine,
    refusal_of,
    send,
)

PROMPT = (5, 6, 7)
GREEDY = [generation("greedy", PROMPT, 12), generation("other", (9, 11), 12)]
TOPS = [generation("tops", PROMPT, 6, top_logprobs=5)]
SAMPLES = [generation("sample", PROMPT, 6, temperature=1.0, top_p=0.9, seed=7)]
SCORES = [
    scoring("score", PROMPT, (40, 41, 42)),
    scoring("likely", PROMPT, (0, 8)),
    scoring("ranked", PROMPT, (40, 41), ranked=True),
]
REQUESTS = [*GREEDY, *TOPS, *SAMPLES, *SCORES]
ALL = {request.request_id for request in REQUESTS}
SCORED = {request.request_id for request in SCORES}


def tempered(row, temperature):
    logits = row / temperature
    return logits - np.logaddexp.reduce(logits)


def reports(report):
    return lambda server: setattr(server, "report", report)


def ignores(*names):
    return lambda server: setattr(server, "ignored", frozenset(names))


def stale(server):
    """The numbers of the request before, at the tokens of this one."""
    kept = [[-1.0]]

    def spoil(body, answer):
        if not isinstance(answer, dict) or "data" in answer:
            return answer
        for step in answer.get("completion_probabilities", ()):
            kept.append(step["logprob"])
            step["logprob"] = kept[-2] if len(kept) > 2 else kept[-1]
            step["top_logprobs"][0]["logprob"] = step["logprob"]
        return answer

    server.spoil = spoil


def set_logprobs(value):
    """Every reported log-probability becomes a value."""

    def change(found):
        if isinstance(found, dict):
            for name, inner in found.items():
                if name == "logprob" or isinstance(inner, float):
                    found[name] = value
                elif name == "token_logprobs":
                    found[name] = [value] * len(inner)
                else:
                    change(inner)
        elif isinstance(found, list):
            for inner in found:
                change(inner)
        return found

    return lambda server: setattr(server, "spoil", lambda body, answer: change(answer))


def top_of(most):
    return lambda server: setattr(server, "most_top", most)


def always_rank_one(server):
    def spoil(body, answer):
        for position in answer.get("choices", [{}])[0].get("prompt_logprobs") or ():
            for entry in (position or {}).values():
                entry["rank"] = 1
        return answer

    server.spoil = spoil


def answer_of(server):
    """What an engine answers from a server that is so from the start; the reason why
    it is refused."""
    asked = REQUESTS
    try:
        with endpoint_engine(server) as engine:
            return answers(engine, asked), engine
    except (InputError, EngineError) as error:
        return str(error), None


def assert_never_wrong(found, lm, requests=REQUESTS):
    """Returns the names of the answers, all of which are right."""
    expected = answers(FakeEngine(lm.answer), requests)
    right = set()
    for name, answer in found.items():
        if answer.status != "ok":
            assert answer.error
            continue
        assert answer.token_ids == expected[name].token_ids, name
        # without scores it has none
        if answer.logprobs or name in SCORED:
            assert answer.logprobs == pytest.approx(
                expected[name].logprobs, abs=1e-9
            ), name
        assert answer.ranks == expected[name].ranks[: len(answer.ranks)], name
        assert answer.top_ids in (expected[name].top_ids, ()), name
        right.add(name)
    return right


def of_choice(change):
    def spoil(body, answer):
        if "data" not in answer:
            change(answer.get("choices", [answer])[0])
        return answer

    return spoil


PLANTED = {
    "all zero": reports(lambda row, t: np.zeros_like(row)),
    "constant": reports(lambda row, t: np.full_like(row, -1.5)),
    "stale": stale,
    "bias ignored": ignores("logit_bias"),
    "log-probabilities ignored": ignores(
        "n_probs", "logprobs", "prompt_logprobs", "echo"
    ),
    "prompt_logprobs ignored": ignores("prompt_logprobs"),
    "softened at 0": reports(lambda row, t: tempered(row, 1.5)),
    "after temperature": reports(lambda row, t: tempered(row, t or 1.0)),
    "after its own temperature": reports(lambda row, t: tempered(row, t or 0.7)),
    "logits": reports(lambda row, t: row - 9.0),
    "shifted": reports(lambda row, t: row + 4.0),
    "shifted down": reports(lambda row, t: row - 4.0),
    "NaN": set_logprobs(float("nan")),
    "infinite": set_logprobs(float("-inf")),
    "positive": set_logprobs(0.5),
    "top of 1": top_of(1),
    "top of 3": top_of(3),
    "ranks of 1": always_rank_one,
}
# what is answered besides greedy answers and samples
STILL = {
    ("prompt_logprobs ignored", "llama"): ALL,
    ("stale", "vllm"): ALL,  # a fault of llama.cpp alone
    ("ranks of 1", "llama"): ALL,
    ("ranks of 1", "vllm"): ALL - {"ranked"},
    ("top of 1", "llama"): {"score", "likely"},
    ("top of 1", "vllm"): {"score", "likely"},
    ("top of 3", "llama"): {"score", "likely"},
    ("top of 3", "vllm"): {"score", "likely"},
}
# Without its log-probabilities a greedy answer is none.
NO_GREEDY = {
    "NaN",
    "infinite",
    "positive",
    "logits",
    "shifted",
    "stale",
    "log-probabilities ignored",
}


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
@pytest.mark.parametrize("fault", PLANTED)
def test_lies_give_no_number(fault, dialect):
    server = FakeServer(dialect)
    PLANTED[fault](server)
    found, engine = answer_of(server)
    if engine is None:  # refused at the start
        assert fault in NO_GREEDY
        assert found
        return
    right = assert_never_wrong(found, server.lm)
    assert right & SCORED == STILL.get((fault, dialect), set()) & SCORED, found
    for name in SCORED - right:
        assert failed(found[name].error)["status"] == "excluded"
    assert {"sample", "greedy", "other"} <= right


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
@pytest.mark.parametrize("shift", [0.0, -1.0])
def test_one_nat_of_a_sharp_model_is_found(dialect, shift):
    """Of all log-probabilities alike, so that only samples tell. As in real models, few
    tokens have most of the probability."""
    lm = FakeLM(vocabulary=VOCABULARY, eos_ids=EOS, sharpness=5.0)
    server = FakeServer(dialect, lm)
    server.report = lambda row, temperature: row + shift
    with endpoint_engine(server) as engine:
        abilities = engine._abilities
    assert abilities.scores == (shift == 0.0)
    assert ("are among the likeliest" in abilities.why) == (shift != 0.0)


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
def test_beams_need_their_tops(dialect):
    """Greedy answers do not."""
    server = FakeServer(dialect)
    server.most_top = 1
    search = BeamSearch("beam", PROMPT, width=4, max_tokens=5, eos_ids=EOS)
    with endpoint_engine(server) as engine:
        found = answers(engine, [*GREEDY, *search.start()])
    assert_never_wrong(
        {name: found[name] for name in ("greedy", "other")}, server.lm, GREEDY
    )
    assert found["greedy"].status == "ok"
    search.advance([found["beam/0"]])
    assert search.hypotheses() == ()
    assert search.error.endswith(UNABLE)


def test_ignored_seeds_are_told():
    server = FakeServer()
    server.ignored = frozenset({"seed"})
    with endpoint_engine(server) as engine:
        assert not engine._abilities.seeds


@pytest.mark.parametrize(
    ("ignored", "obeys"),
    [
        (frozenset(), True),
        (frozenset({"top_k"}), False),
        (frozenset({"min_p"}), False),
        (frozenset({"top_k", "min_p"}), False),
    ],
)
def test_ignored_samplers_are_told(ignored, obeys):
    """A text's server may have its own, as Ollama has: samples of fewer tokens."""
    server = FakeServer("openai", EndingLM(lift=0.0))
    server.ignored, server.top_k = ignored, 40
    with endpoint_engine(server) as engine:
        assert engine._abilities.samplers == obeys
        noted = [*_notes("server", engine._abilities)]
    assert any("top_k or min_p" in note for note in noted) != obeys


def test_strict_servers_have_no_samplers():
    """One that refuses the fields may still cut its samples."""
    server = FakeServer("openai")

    def before(handler):
        return "top_k" in server.asked[-1][1] and send(handler, 422, b"{}")

    server.before = before
    with endpoint_engine(server) as engine:
        assert not engine._abilities.samplers


def test_another_name_in_an_answer_is_an_error():
    """A gateway says which model has answered."""
    server, names = (
        FakeServer("openai"),
        itertools.chain(["a"] * 3, itertools.repeat("b")),
    )

    def spoil(body, answer):
        return answer | ({"model": next(names)} if "choices" in answer else {})

    with endpoint_engine(server) as engine:
        server.spoil = spoil
        asked = [generation(number, (5, number), 3) for number in range(6)]
        found = answers(engine, asked)
    lost = [answer for answer in found.values() if answer.status == "engine_error"]
    assert len(lost) == 3
    assert all("as model 'b', before as 'a'" in answer.error for answer in lost)


# ---- lies that begin when the engine has loaded


def fewer_tops(choice):
    for step in choice.get("completion_probabilities", ()):
        del step["top_logprobs"][2:]
    if "logprobs" in choice:
        steps = choice["logprobs"]["top_logprobs"]
        for place, step in enumerate(steps):
            steps[place] = dict(sorted(step.items(), key=lambda pair: -pair[1])[:2])


def other_tokens(choice):
    for name in ("tokens", "token_ids"):
        if name in choice:
            choice[name] = [token + 1 for token in choice[name]]


def read_less(body, answer):
    answer["tokens_evaluated"] = 1
    answer["usage"] = {"prompt_tokens": 1}
    return answer


def truncated(body, answer):
    answer["truncated"] = True
    for choice in answer.get("choices", ()):
        choice["prompt_token_ids"] = choice["prompt_token_ids"][1:]
    return answer


def another_model(body, answer):
    answer["model"] = "another"
    return answer


LATER = {
    "fewer tops": (of_choice(fewer_tops), {"greedy", "other", "sample"} | SCORED),
    "other tokens": (of_choice(other_tokens), {"sample"} | SCORED),
    "another prompt": (read_less, set()),
    "a truncated prompt": (truncated, set()),
    "another model": (another_model, set()),
}


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
@pytest.mark.parametrize("fault", LATER)
def test_later_lies_give_no_number(fault, dialect):
    server = FakeServer(dialect)
    spoil, permitted = LATER[fault]
    with endpoint_engine(server) as engine:
        server.spoil = spoil
        found = answers(engine, REQUESTS)
        # samples have nothing that could be compared
        if fault == "other tokens":
            del found["sample"]
        right = assert_never_wrong(found, server.lm)
        assert right <= permitted
        server.spoil = lambda body, answer: answer
        assert assert_never_wrong(answers(engine, REQUESTS), server.lm) == ALL


# 5000 is no token of the model; a token in another's place would be no nonsense
NONSENSE = [None, True, "x", [], {}, [None], {"x": None}, 5000, 3.5, 10**400]


@pytest.mark.parametrize("dialect", ["llama", "vllm", "openai"])
def test_any_nonsense_is_an_error(dialect):
    """Each field of each answer, replaced by what it is not: an error, or an answer
    with the right numbers."""
    server = FakeServer(dialect)
    draw = random.Random(1)
    asked = REQUESTS if dialect != "openai" else GREEDY

    def places(value, path=()):
        yield path
        inner = value.items() if isinstance(value, dict) else ()
        inner = list(enumerate(value))[:3] if isinstance(value, list) else inner
        for name, below in inner:
            yield from places(below, (*path, name))

    def spoil(body, answer):
        answer = json.loads(json.dumps(answer))
        *path, last = draw.choice(list(places(answer))[1:])
        place = answer
        for name in path:
            place = place[name]
        value = place[last]
        if isinstance(value, list) and draw.random() < 0.7:
            lists = [value[1:], value[:-1], value[::-1], value * 2, value[:1] + value]
            place[last] = draw.choice(lists)
        elif draw.random() < 0.2:
            del place[last]
        else:
            place[last] = draw.choice(NONSENSE)
        return answer

    with endpoint_engine(server) as engine:
        server.spoil = spoil
        for number in range(6):
            server.partial = frozenset(range(1, 3072, 2)) if number % 2 else frozenset()
            found = answers(engine, asked)
            # of samples and texts there is nothing to compare
            for name in ("sample", *(ALL if dialect == "openai" else ())):
                found.pop(name, None)
            assert_never_wrong(found, server.lm)
    for _ in range(3):
        refusal_of(server)


HALVES = "\ud800", "x\ud83d"


@pytest.mark.parametrize(
    ("text", "count", "reason", "status"),
    [
        ("a text of some length", 12, "content_filter", "engine_error"),
        ("a text of some length", 12, None, "engine_error"),
        ("a text of some length", 3, "length", "engine_error"),
        ("1701", None, "length", "engine_error"),
        ("1701", 0, "length", "engine_error"),
        ("1701", 12, "length", "ok"),  # as generated, of which the text is fewer
        (
            "of a text that is more tokens than were made\N{REPLACEMENT CHARACTER}"
            " on reading it again, as it is",
            12,
            "length",
            "ok",
        ),
        ("ended", 3, "eos_token", "ok"),
        ("ended", 12, "stop", "ok"),
        ("", None, "length", "engine_error"),
        ("", 12, "length", "engine_error"),
        ("one two three four five six seven eight nine ten", None, "length", "ok"),
        (HALVES[0], None, "length", "engine_error"),
        (HALVES[1], 12, "length", "engine_error"),
    ],
)
def test_lengths_of_texts_are_checked(text, count, reason, status):
    """An API's answer that the model did not end; the server states a count of
    tokens."""
    server = FakeServer("openai")

    def spoil(body, answer):
        choices = [{"text": text, "finish_reason": reason}] * len(wanted)
        if "choices" in answer:
            answer["choices"] = choices
            answer["usage"]["completion_tokens"] = count
        return answer

    with endpoint_engine(server) as engine:
        server.spoil = spoil
        # the second time there are two choices
        for wanted in ([status], ["engine_error"] * 2):
            (found,) = answers(engine, GREEDY[:1]).values()
            assert found.status == wanted[0]
            said = server._tokenizer.decode(found.token_ids, skip_special_tokens=True)
            assert said in (text, "")
            # where the limit is reached, a stated end may be a cut
            has_end = bool(set(found.token_ids) & eos_ids_of(server._tokenizer))
            assert has_end == (found.status == "ok" and count == 3)


def earlier(server):
    """Texts of the request before."""
    kept = []

    def spoil(body, answer):
        if "choices" in answer:
            kept.append(answer["choices"])
            answer["choices"] = kept[-2:][0]
        return answer

    server.spoil = spoil


def by_turns(server):
    """Each text again after six requests, whatever they are."""
    texts, turns = [], itertools.count()

    def spoil(body, answer):
        if "choices" in answer:
            texts.append(answer["choices"])
            answer["choices"] = texts[next(turns) % 6]
        return answer

    server.spoil = spoil


def repeating(server):
    def spoil(body, answer):
        for choice in answer.get("choices", ()):
            choice["text"] = body["prompt"] + choice["text"]
        return answer

    server.spoil = spoil


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (earlier, "in another order have other answers"),
        (by_turns, "in another order have other answers"),
        (repeating, "repeats the prompt"),
    ],
)
def test_texts_are_examined(lie, words):
    server = FakeServer("openai")
    lie(server)
    assert words in refusal_of(server)


def between(ids):
    return [700, *ids, 701, 702]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"reads": lambda ids: [0, *ids]}, "usage.prompt_tokens: the server read"),
        ({"reads": between}, "usage.prompt_tokens: the server read"),
        ({"reads": lambda ids: ids[-4:]}, "usage.prompt_tokens: the server read"),
        ({"counts": False}, ""),
        ({"counts": False, "reads": lambda ids: [0, *ids]}, "before a text"),
        ({"counts": False, "reads": lambda ids: [*range(700, 720), *ids]}, "before"),
        ({"counts": False, "reads": lambda ids: [*ids, 701, 702]}, "a text"),
        ({"counts": False, "reads": between}, "a text"),
        ({"counts": False, "reads": lambda ids: ids[-50:]}, "cuts them off"),
        # told otherwise by each request, or not
        ({"penalty": 1.3}, ""),
        (
            {
                "ignored": frozenset({"repetition_penalty"}),
                "spoil": of_choice(lambda choice: choice.update(text=" a new word")),
            },
            "repetition penalty",
        ),
    ],
)
def test_what_is_read_is_checked(change, words):
    server = FakeServer("openai", AveragingLM(lift=0.0))
    server.context = 8192
    for name, value in change.items():
        setattr(server, name, value)
    refused = refusal_of(server)
    assert words in refused
    assert bool(words) == bool(refused), refused


def test_a_model_among_several_is_named():
    for dialect in ("llama", "vllm", "openai"):
        server = FakeServer(dialect)
        entry = server._models({})["data"][0]
        both = {"data": [entry, entry | {"id": "adapter"}]}
        server._models = lambda body, both=both: both
        assert "name one; ['tiny', 'adapter']" in refusal_of(server)


# ---- other models and servers than before


@pytest.mark.parametrize("dialect", ["llama", "vllm", "openai"])
def test_a_swapped_model_is_noticed(dialect):
    """Before the next shard is given out, and when an engine loads it."""
    server, first = FakeServer(dialect), EndingLM()
    server.lm = first
    with endpoint_engine(server) as engine:
        engine.confirm()
        server.lm = EndingLM(seed=9)
        with pytest.raises(InputError, match="no longer those"):
            engine.confirm()
        server.lm = first
        engine.confirm()

    def swap():
        server.lm = EndingLM(seed=9)

    server.lm = first
    with (
        pytest.raises(InputError, match="no longer those"),
        endpoint_engine(server, swap),
    ):
        pass


@pytest.mark.parametrize("dialect", ["llama", "vllm"])
@pytest.mark.parametrize("fault", ["softened at 0", "constant"])
def test_later_lies_stop_the_run(fault, dialect):
    """Scores that change while the greedy answers stay."""
    server = FakeServer(dialect)
    with endpoint_engine(server) as engine:
        for _ in range(8):  # each prompt in turn
            engine.confirm()
        PLANTED[fault](server)
        with pytest.raises((InputError, EngineError)):
            engine.confirm()


@pytest.mark.parametrize(("share", "missed"), [(0.0, 20), (0.1, 20), (1.0, 0)])
def test_mixtures_are_missed_as_stated(share, missed):
    server = FakeServer("openai")
    first, other, draw, found = server.lm, EndingLM(seed=9), random.Random(3), 0

    def choose(handler):
        server.lm = other if draw.random() < share else first

    with endpoint_engine(server) as engine:
        server.before = choose
        for _ in range(20):
            with contextlib.suppress(InputError):
                engine.confirm()
                found += 1
        if share == 0.1:
            # 1,000 requests repeat 20 prompts
            told = []
            for _ in range(40):
                before = engine.stats().changed
                for _ in range(20):
                    engine._wait(engine._repeat())
                told.append(engine.stats().changed > before)
            assert 0.05 <= told.count(False) / len(told) <= 0.2
    assert found == missed


class Nearly(EndingLM):
    """The same model after a small change: few answers are others."""

    def logprobs(self, prefix):
        row = super().logprobs(prefix)
        if prefix[-1] % 10:
            return row
        return EndingLM(seed=9).logprobs(prefix)


@pytest.mark.parametrize(
    ("dialect", "other", "share", "ended"),
    [
        ("openai", EndingLM(), 0.1, False),
        ("openai", Nearly(), 0.1, False),
        ("openai", EndingLM(seed=9), 0.1, False),
        ("vllm", EndingLM(seed=9), 0.1, True),
    ],
)
def test_mixtures_are_told_within_a_run(dialect, other, share, ended, monkeypatch):
    """One in ten answers is another model's. By its scores the run ends; by its
    answers, of which a tie may be one, it is marked."""
    monkeypatch.setattr(engine_module, "_REPEATED", 0.5)
    server = FakeServer(dialect)
    first, draw = server.lm, random.Random(5)

    def before(handler):
        server.lm = other if draw.random() < share else first

    asked = [generation(number, (5, number + 1), 1) for number in range(200)]
    with endpoint_engine(server, concurrency=1) as engine:
        server.before = before
        if ended:
            with pytest.raises(InputError, match="no longer those"):
                answers(engine, asked)
            return
        answers(engine, asked)
        stats = engine.stats()
    assert 60 <= stats.repeated <= 140
    differs = other.logprobs((5, 10)).tolist() != first.logprobs((5, 10)).tolist()
    assert (stats.changed > 0) == differs
    assert ("changed" in stats.remarks) == differs


def test_half_characters_of_texts_are_told():
    server = FakeServer("openai")

    def spoil(body, answer):
        for choice in answer.get("choices", ()):
            choice["text"] = "caf\ufffd"
        return answer

    asked = [generation(number, (5, number), 3) for number in range(4)]
    with endpoint_engine(server) as engine:
        answers(engine, asked)
        assert engine.stats().replaced == 0
        server.spoil = spoil
        answers(engine, asked[:3])
        (note,) = engine.stats().remarks.values()
    assert note.startswith("3 of its answers have U+FFFD, the replacement character")


def test_each_address_is_examined():
    """One with another model is refused; one that lies takes the scores from all."""
    with (
        pytest.raises(InputError, match="different models"),
        endpoint_engine(FakeServer(), others=[FakeServer(lm=EndingLM(seed=9))]),
    ):
        pass
    liar = FakeServer()
    liar.ignored = frozenset({"logit_bias"})
    with endpoint_engine(FakeServer(), others=[liar]) as engine:
        found = answers(engine, SCORES)
    for answer in found.values():
        assert failed(answer.error)["status"] == "excluded"


def test_each_address_is_confirmed():
    one, other = FakeServer(), FakeServer()
    with endpoint_engine(one, others=[other]) as engine:
        engine.confirm()
        other.lm = EndingLM(seed=9)
        with pytest.raises(InputError, match="no longer those"):
            engine.confirm()
        other.before = lambda handler: send(handler, 503, b"")
        assert assert_never_wrong(answers(engine, REQUESTS * 5), one.lm) == ALL
        engine.confirm()  # it rests


def test_a_missing_model_is_an_error():
    """Mid-run, and for a name that the server does not have."""
    server = FakeServer("vllm")
    with endpoint_engine(server) as engine:
        server.model = "other"
        found = answers(engine, REQUESTS)
        assert {answer.status for answer in found.values()} == {"engine_error"}
        with pytest.raises(EngineError):
            engine.confirm()
    for dialect in ("llama", "vllm", "openai"):
        server = FakeServer(dialect)
        with (
            pytest.raises(InputError, match="'nobody' is not served"),
            endpoint_engine(server, model="nobody"),
        ):
            pass


def test_an_api_of_chats_is_refused():
    server = FakeServer("openai")
    server.before = lambda handler: (
        handler.path == "/v1/completions" and send(handler, 404, b"{}")
    )
    found = refusal_of(server)
    assert "has no /v1/completions (HTTP 404" in found
    assert "serve the model with `vllm serve`" in found


def test_a_smaller_context_excludes():
    """The server was started again with a smaller one, before the load and after."""
    server = FakeServer()
    long = generation("long", range(1, 100), 10)
    with endpoint_engine(server, lambda: setattr(server, "context", 64)) as engine:
        assert answers(engine, [long])["long"].error.endswith(TOO_LONG)
    server.context = 512
    with endpoint_engine(server) as engine:
        server.context = 64
        answer = answers(engine, [long])["long"]
    assert failed(answer.error)["status"] == "excluded"


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ message }}"])
def test_another_template_of_a_server_is_named(tmp_path, template):
    server, base = FakeServer(), tmp_path / "base"
    shutil.copytree(BASE, base)
    (base / "chat_template.jinja").write_text("{{ messages }}")
    server.spoil = lambda body, answer: answer | {"chat_template": template}
    with server.serving() as url:
        folder = prepare_endpoint(Endpoint(url=url), base)
    lines = read_served(folder).differences
    assert [line.split(":")[0] for line in lines] == ["chat_template"] * (
        template == "{{ message }}"
    )
