"""HTTP that fails: nothing is lost, nothing is believed, and no key is shown."""

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import socket
import time
from email.utils import formatdate

import pytest
from pydantic import ValidationError

from evaluator.checkpoints.served import Endpoint
from evaluator.core.errors import EngineError, InputError
from evaluator.engine.endpoint import client as client_module
from evaluator.engine.endpoint.client import Client, Refused, Unreachable
from evaluator.engine.endpoint.prepare import prepare_endpoint
from evaluator.engine.endpoint.spending import Spending
from tests.support.engines import answers
from tests.support.fake import FakeEngine
from tests.support.requests import generation
from tests.support.served import BASE, FakeServer, endpoint_engine, send

# of a request that shall be answered, on however slow a machine
PATIENT = {"patience": 600.0}
BUSY = (429, 503, 502, 500)
KEY = "sk-very-secret-0123456789"


@contextlib.contextmanager
def pair(first, second, **fields):
    with first.serving() as one, second.serving() as other:
        yield Endpoint(url=(one, other), **fields)


def gets(endpoint, count=1, path="/v1/models", **more):
    """Answers, or what was raised."""

    async def all_of_them():
        client = Client(endpoint, **{"patience": 1.0} | more)
        requests = [client.get(path) for _ in range(count)]
        found = await asyncio.gather(*requests, return_exceptions=True)
        await client.close()
        return found

    return asyncio.run(all_of_them())


def got(before, key_env=None, **more):
    """What is answered by a server that answers so, and the server."""
    server = FakeServer()
    server.before = before
    with server.serving() as url:
        (found,) = gets(Endpoint(url=url, key_env=key_env), **more)
    return found, server


def burst(statuses, **headers):
    """The first answers of a server have other statuses."""
    left = iter(statuses)

    def before(handler):
        status = next(left, None)
        return status is not None and send(handler, status, b"{}", **headers)

    return before


def stall(handler):
    time.sleep(2)


def breaks(handler):
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    handler.wfile.flush()
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
    return True


@pytest.mark.parametrize(
    "tries",
    [
        [stall],
        [breaks],
        [
            lambda handler, status=status: send(handler, status, b"{}")
            for status in BUSY
        ],
        [lambda handler: send(handler, 429, b"{}", Retry_After="nonsense")],
        [
            lambda handler, body=body: send(handler, 200, json.dumps(body).encode())
            for body in (
                {"error": {"code": 429, "message": "slow down"}},
                {"error": {"code": "rate_limited"}, "code": "503"},
                {"error": "overloaded"},
            )
        ],
        [lambda handler: send(handler, 200, b"{}", Content_Encoding="gzip")],
    ],
)
def test_busy_servers_are_asked_again(tries, monkeypatch):
    monkeypatch.setattr(client_module, "_ANSWER_SECONDS", 1.0)
    left = [lambda handler: False, *tries]
    found, server = got(lambda handler: left.pop()(handler), **PATIENT)
    assert found["data"]
    assert len(server.asked) == len(tries) + 1


@pytest.mark.parametrize("is_date", [False, True])
def test_retry_after_is_awaited(is_date):
    answered = []

    def before(handler):
        answered.append(time.monotonic())
        later = formatdate(time.time() + 2, usegmt=True) if is_date else "0.7"
        return len(answered) == 1 and send(handler, 429, b"{}", Retry_After=later)

    got(before, **PATIENT)
    assert answered[1] - answered[0] >= 0.7


def packed(content: bytes) -> bytes:
    """Without the time: every process has the same names of tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "encoding", "words"),
    [
        (b'{"error": {"code": 400, "message": "no such field"}}', "identity", "400"),
        (packed(b" " * 3000), "gzip", "more than 2,000 bytes"),
        (b" " * 3000, "identity", "more than 2,000 bytes"),
        (packed(packed(b"{}")), "gzip, gzip", "Content-Encoding"),
        (packed(b"{}" * 900)[:20], "gzip", "no JSON"),
    ],
)
def test_no_answers_are_refused(content, encoding, words, monkeypatch):
    monkeypatch.setattr(client_module, "_MOST_BYTES", 2000)
    found, _ = got(
        lambda handler: send(handler, 200, content, Content_Encoding=encoding)
    )
    assert isinstance(found, EngineError)
    assert words in str(found)


def test_long_waits_are_no_answer():
    found, _ = got(burst([429] * 9, Retry_After="inf"))
    assert isinstance(found, Unreachable)
    assert "429" in str(found)


def test_bursts_narrow_the_requests():
    server, numbers = FakeServer(), itertools.count(1)

    def before(handler):
        number = next(numbers)
        if number == 13:  # the first one after the burst
            server.most_in_flight = 0
        return number <= 12 and send(handler, 429, b"{}")

    server.before = before
    server.seconds = 0.01
    with server.serving() as url:
        found = gets(Endpoint(url=url, concurrency=12), 40, **PATIENT)
    assert all(answer["data"] for answer in found)
    assert len(server.asked) == 52  # none is asked again without need
    assert 1 < server.most_in_flight < 12  # few, then slowly more


def test_trickled_answers_end():
    def trickle(handler):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        for _ in range(30):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.1)
        return True

    server = FakeServer()
    server.before = trickle
    with server.serving() as url:
        (found,) = gets(Endpoint(url=url, timeout=0.3), 1, patience=0.1)
    assert isinstance(found, Unreachable)
    assert "no whole answer within 0.3 s" in str(found)
    assert "2 tries" in str(found)


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "soon"])
def test_timeouts_are_seconds(timeout):
    with pytest.raises(ValidationError, match="timeout"):
        Endpoint(url="http://x", timeout=timeout)


@pytest.mark.parametrize(
    ("status", "content", "headers"),
    [
        (200, b"<html>Welcome</html>", {}),
        (200, b"7", {}),
        (200, b"\xff\xfe", {}),
        (200, b"[" * 100_000, {}),
        (200, b"no gzip", {"Content_Encoding": "gzip"}),
        (302, b"", {"Location": "http://127.0.0.1:9/elsewhere"}),
    ],
)
def test_other_answers_are_errors(status, content, headers):
    answer = lambda handler: send(handler, status, content, **headers)  # noqa: E731
    found, _ = got(answer, patience=0.1)
    assert isinstance(found, EngineError)
    assert not isinstance(found, Refused)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (
            b"<html>\n<title>Bad \x1b[31mRequest</title>" + b"x" * 300,
            "'<html> <title>Bad",
        ),
        (b"", "''"),
        (
            b'{"error": {"message": "too\\nlong\\ud800"}}',
            "too long\N{REPLACEMENT CHARACTER}",
        ),
    ],
)
def test_refusals_show_their_first_words(content, shown):
    found, _ = got(lambda handler: send(handler, 400, content))
    assert str(found).startswith(f"HTTP 400: {shown}")
    assert str(found).isprintable()
    assert len(str(found)) < 100


def test_huge_answers_are_refused(monkeypatch):
    monkeypatch.setattr(client_module, "_MOST_BYTES", 1000)
    found, _ = got(lambda handler: send(handler, 200, b" " * 2000))
    assert "more than 1,000 bytes" in str(found)


def test_one_bad_request_ends_nothing():
    """The server answers others, so that it is not down."""
    server = FakeServer()
    server.before = lambda handler: handler.path == "/bad" and send(handler, 500, b"")
    with server.serving() as url:

        async def both():
            client = Client(Endpoint(url=url), **PATIENT)
            bad = asyncio.ensure_future(client.get("/bad"))
            while not bad.done():
                await client.get("/v1/models")
                await asyncio.sleep(0.02)
            await client.close()
            return bad.exception()

        assert isinstance(asyncio.run(both()), Refused)


def test_failing_urls_draw_no_requests(monkeypatch):
    """A server that fails at once has always room."""
    monkeypatch.setattr(client_module, "_REST_SECONDS", 1e6)
    good, bad = FakeServer(), FakeServer()
    bad.before = lambda handler: send(handler, 503, b"")
    good.seconds = 0.01
    with pair(bad, good, concurrency=4) as endpoint:
        found = gets(endpoint, 100, **PATIENT)
    assert all(answer["data"] for answer in found)
    assert len(bad.asked) < 15


def test_rested_urls_are_tried_again(monkeypatch):
    monkeypatch.setattr(client_module, "_REST_SECONDS", 0.0)
    one, other = FakeServer(), FakeServer()
    one.before = burst([503] * 6)
    one.seconds = other.seconds = 0.02
    with pair(one, other, concurrency=2) as endpoint:
        found = gets(endpoint, 80, **PATIENT)
    assert all(answer["data"] for answer in found)
    assert len(one.asked) > 6  # it answers again


def test_dead_servers_are_engine_errors():
    server = FakeServer()
    asked = [generation(number, (5, number), 3) for number in range(20)]
    given = []
    with endpoint_engine(server) as engine:
        engine._client._patience = 0.3

        def die(handler):
            if len(given) < 5:
                return False
            handler.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionError

        server.before = die
        with pytest.raises(Unreachable):
            given.extend(engine.run(Given(asked)))
        # it comes back: the rest is answered by the same engine
        server.before = lambda handler: False
        done = {answer.request_id for answer in given}
        rest = [request for request in asked if request.request_id not in done]
        given += answers(engine, rest).values()
    expected = answers(FakeEngine(server.lm.answer), asked)
    assert {answer.request_id: answer.token_ids for answer in given} == {
        name: answer.token_ids for name, answer in expected.items()
    }


class Given:
    """Two requests at a time."""

    def __init__(self, requests):
        self.waiting = list(requests)

    def take(self, limit):
        taken = self.waiting[: min(limit, 2)]
        del self.waiting[: len(taken)]
        return taken


# ---- keys


def needs_key(handler):
    if handler.headers["Authorization"] == f"Bearer {KEY}":
        return False
    message = f'{{"error": {{"message": "bad {handler.headers["Authorization"]}"}}}}'
    return send(handler, 401, message.encode())


def test_the_key_is_sent(monkeypatch):
    monkeypatch.setenv("MY_ACCESS", f"{KEY}\n")
    server = FakeServer()
    server.before = needs_key
    with endpoint_engine(server, key_env="MY_ACCESS") as engine:
        found = answers(engine, [generation("one", (5, 6), 3)])
    assert found["one"].status == "ok"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NOT_MY_ACCESS", "", "MY_ACCESS is not set"),
        ("MY_ACCESS", " ", "MY_ACCESS is not set"),
        ("MY_ACCESS", "sk-other-0123456789", "the key in MY_ACCESS is not accepted"),
        ("MY_ACCESS", f"{KEY}\nX: y", "no header can hold"),
        ("MY_ACCESS", f"{KEY}é", "no header can hold"),
        (None, "", "no key_env"),
    ],
)
def test_wrong_keys_are_named(monkeypatch, name, value, words):
    monkeypatch.setenv("MY_ACCESS", value)
    server = FakeServer()
    server.before = needs_key
    with server.serving() as url, pytest.raises(InputError, match=words) as raised:
        prepare_endpoint(Endpoint(url=url, key_env=name), BASE)
    assert "sk-" not in str(raised.value)


def test_keys_appear_nowhere(monkeypatch, tmp_path):
    """Not in files, errors or texts of the server, which repeats the key."""
    monkeypatch.setenv("MY_ACCESS", KEY)
    server, refuses = FakeServer(), []
    server.before = lambda handler: (
        bool(refuses) and send(handler, refuses[0], f'{{"error": "no {KEY}"}}'.encode())
    )
    asked = [generation("one", (5, 6), 3)]
    texts = []
    with endpoint_engine(server, key_env="MY_ACCESS") as engine:
        for status in (400, 302, 404):
            refuses[:] = [status]
            texts.append(answers(engine, asked)["one"].error)
        engine._client._patience = 0.1
        refuses[:] = [429]
        with pytest.raises(Unreachable) as raised:
            answers(engine, asked)
    assert "***" in texts[0]
    assert not any(KEY in text for text in [*texts, str(raised.value)])
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


@pytest.mark.parametrize("key", [KEY, 'with/slash"and\\more-0123'])
def test_no_answer_has_the_key(monkeypatch, key):
    """However its server spells it: as name, version, build or in a text."""
    monkeypatch.setenv("MY_ACCESS", key)
    spelled = json.dumps(key).strip('"')
    for text in (spelled, spelled.replace("/", "\\/"), spelled.replace("e", "\\u0065")):
        body = f'{{"a": ["x {text} \\n"], "{text}": {{"b": "{text}"}}}}'.encode()
        found, _ = got(
            lambda handler, body=body: send(handler, 200, body), key_env="MY_ACCESS"
        )
        assert found == {"a": ["x *** \n"], "***": {"b": "***"}}


@pytest.mark.parametrize(
    "url",
    [
        "http://h?api_key=abc",
        "http://h/v1?",
        "http://h#x",
        "ftp://host",
        "host:80",
        "http://",
        "http://a:b@c",
        "http://host:99999",
    ],
)
def test_addresses_are_checked(url):
    with pytest.raises(ValueError, match="url"):
        Endpoint(url=url)


def test_a_kill_loses_no_count(tmp_path, monkeypatch):
    """The count is written beside, and renamed; what is no count is refused."""
    file = tmp_path / "spent.json"
    spending = Spending(Endpoint(url="http://x", max_requests=3), file)
    for _ in range(2):
        spending.count({"prompt": [1], "max_tokens": 1})
    before = file.read_bytes()
    with monkeypatch.context() as killed:
        killed.setattr(os, "fsync", lambda handle: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            spending.count({"prompt": [1], "max_tokens": 1})
    assert file.read_bytes() == before
    spending.count({"prompt": [1], "max_tokens": 1})
    with pytest.raises(InputError, match="max_requests: 3: 3 are used up"):
        spending.count({"prompt": [1], "max_tokens": 1})
    for torn in ("", "[]", '{"max_re'):
        file.write_text(torn)
        with pytest.raises(InputError, match=r"spent\.json"):
            spending.count({"prompt": [1], "max_tokens": 1})
