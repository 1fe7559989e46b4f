"""HTTP to the servers of one model: bounded, patient, and without a repeated answer.

A server that is busy (429, 503) or fails gets half as many requests at a time, then
slowly more again. A request that a server did not answer goes to another one, or waits.
A server that fails again and again rests while another one lives."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import random
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from evaluator.checkpoints.served import Endpoint
from evaluator.core.errors import (
    SHORTEST_SECRET,
    EngineError,
    InputError,
    one_line,
    printable,
)
from evaluator.engine.endpoint.spending import Spending

_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
# until an answer is whole; a token more takes one more second
_ANSWER_SECONDS = 120.0
PATIENCE_SECONDS = 300.0  # of one request, with all its tries
_FIRST_WAIT, _LONGEST_WAIT = 0.25, 30.0  # between two tries
_DEAD = 3  # failures in a row
_REST_SECONDS = 60.0
_ESCAPED = re.compile(r'\\(["\\/]|u00([0-7][0-9a-fA-F]))')  # an ASCII character in JSON
_MOST_BYTES = 2**28  # of an answer; a whole distribution has less
_PIECE = 2**20  # bytes that are unpacked at a time
_GZIP = 16 + zlib.MAX_WBITS


class Unreachable(EngineError):
    """No server answers."""


class Unusable(EngineError):
    """An answer of no use: others may be right."""


class Refused(Unusable):
    """The server does not accept a request, and would not accept it again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclass(slots=True)
class _Server:
    url: str
    most: int
    limit: float  # requests at a time, now
    in_flight: int = 0
    failures: int = 0  # in a row
    rests_until: float = 0.0

    def succeeded(self) -> None:
        self.failures = 0
        self.limit = min(self.most, self.limit + 1 / self.limit)

    def failed(self) -> None:
        self.failures += 1
        self.limit = max(1.0, self.limit / 2)
        if self.failures >= _DEAD:
            self.rests_until = time.monotonic() + _REST_SECONDS


class Client:
    """Sends JSON to the servers of an endpoint. Belongs to one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        spending: Path | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`spending`: the file that counts requests. `patience`: seconds until a
        request without an answer is an error. Raises InputError without the key."""
        self._key_env = endpoint.key_env
        self._key = _key(endpoint.key_env)
        most = endpoint.concurrency
        self._servers = [_Server(url, most, most) for url in endpoint.url]
        self._patience = patience
        self._timeout = endpoint.timeout
        self._room = asyncio.Condition()
        self._http = httpx.AsyncClient(
            headers={"Accept-Encoding": "gzip"}
            | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=self.most),
            trust_env=False,
        )
        self._spending = Spending(endpoint, spending)
        self.answered = 0  # requests

    @property
    def address(self) -> str:
        """In words, for errors."""
        return f"endpoint {self._servers[0].url}"

    @property
    def most(self) -> int:
        """Requests at a time, at most."""
        return sum(server.most for server in self._servers)

    def narrow(self, slots: int | None) -> None:
        """Each server computes so many requests at a time; others would only wait."""
        for server in self._servers:
            server.most = min(server.most, slots or server.most)
            server.limit = min(server.limit, server.most)

    def each(self) -> list[Client]:
        """One for each server that lives, over the same connections."""
        clients = []
        for server in self._living():
            client = copy.copy(self)
            client._servers = [server]
            clients.append(client)
        return clients

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Any:
        """JSON. Raises Unusable, Unreachable or InputError."""
        return await self._send("GET", path, None, 0)

    async def post(self, path: str, body: Mapping[str, Any], tokens: int = 1) -> Any:
        """JSON. `tokens`: of the answer. Raises Unusable, Unreachable or InputError."""
        self._spending.count(body)
        return await self._send("POST", path, body, tokens)

    async def _send(self, method: str, path: str, body: Any, tokens: int) -> Any:
        started, tries = time.monotonic(), 0
        before, seconds = self.answered, self._timeout or _ANSWER_SECONDS + tokens
        while True:
            server = await self._enter()
            try:
                answer = self._exchange(method, server.url + path, body)
                response, content = await asyncio.wait_for(answer, seconds)
            except (httpx.RequestError, TimeoutError, zlib.error) as error:
                server.failed()
                status, wait, why = 0, None, self._shown(error)
                if isinstance(error, TimeoutError):
                    why = f"no whole answer within {seconds:g} s (timeout: of a model)"
            else:
                value = _parsed(content)
                status, why = _outcome(response, value)
                if status not in _BUSY:
                    server.succeeded()
                    self.answered += 1
                    return self._read(response, status, content, value)
                server.failed()
                wait = _retry_after(response.headers)
                why = self._shown(f"HTTP {response.status_code}{why}")
            finally:
                await self._leave(server)
            tries += 1
            if status == 500 and tries >= _DEAD and self.answered > before:
                raise Refused(status, "and other requests are answered")
            if wait is None:
                wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2**tries) * random.random()
            # an answer may take longer than our patience; it has a second try
            last = tries > 1 or wait > self._patience
            passed = time.monotonic() - started
            if last and passed + wait > self._patience:
                raise Unreachable(
                    f"endpoint {server.url}: {why}, for {passed:.0f} s and {tries} tries"
                )
            await asyncio.sleep(wait)

    async def _exchange(
        self, method: str, url: str, body: Any
    ) -> tuple[httpx.Response, bytes]:
        content, unpacked = bytearray(), None
        async with self._http.stream(method, url, json=body) as response:
            packed = response.headers.get("Content-Encoding", "identity").lower()
            if packed == "gzip":
                unpacked = zlib.decompressobj(_GZIP)
            elif packed != "identity":
                raise Unusable(f"endpoint {url}: Content-Encoding: {packed[:80]!r}")
            async for part in response.aiter_raw():
                while part:
                    if unpacked is None:
                        content, part = content + part, b""
                    else:
                        content += unpacked.decompress(part, _PIECE)
                        part = unpacked.unconsumed_tail
                    if len(content) > _MOST_BYTES:
                        raise Unusable(
                            f"endpoint {url}: an answer of more than"
                            f" {_MOST_BYTES:,} bytes"
                        )
        return response, bytes(content)

    async def _enter(self) -> _Server:
        """Wait for room; returns the least busy server that lives."""
        async with self._room:
            await self._room.wait_for(lambda: self._free() is not None)
            server = self._free()
            assert server is not None
            server.in_flight += 1
        return server

    def _living(self) -> list[_Server]:
        """The servers that do not rest; all, if all do."""
        now = time.monotonic()
        living = [
            server
            for server in self._servers
            if server.failures < _DEAD or server.rests_until < now
        ]
        return living or self._servers

    def _free(self) -> _Server | None:
        free = [server for server in self._living() if server.in_flight < server.limit]
        return min(
            free, key=lambda server: (server.failures, server.in_flight), default=None
        )

    async def _leave(self, server: _Server) -> None:
        server.in_flight -= 1
        async with self._room:
            self._room.notify_all()

    def _read(
        self, response: httpx.Response, status: int, content: bytes, value: Any
    ) -> Any:
        place = f"endpoint {response.request.url}"
        if status in (401, 403):
            key = "no key_env is given"
            if self._key_env is not None:
                key = f"the key in {self._key_env} is not accepted"
            raise InputError(f"{place}: HTTP {status}: {key}")
        if len(self._key) >= SHORTEST_SECRET:
            plain = _ESCAPED.sub(_unescaped, content.decode(errors="replace"))
            value = _without(value, self._key) if self._key in plain else value
        text = self._shown(content.decode(errors="replace"))
        if status >= 400:
            raise Refused(status, self._shown(_message(value)) or repr(text[:80]))
        if status >= 300 or not isinstance(value, dict | list):
            raise Unusable(f"{place}: HTTP {status}, and no JSON: {text[:80]!r}")
        return value

    def _shown(self, text: BaseException | str) -> str:
        """One line without the key, which a server may repeat."""
        words = str(text) or one_line(text)
        words = words.replace(self._key, "***") if self._key else words
        return printable(one_line(words))


def _key(variable: str | None) -> str:
    """The key of an environment variable; empty: there is none. Raises InputError."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"key_env: the environment variable {variable} is not set")
    # an error of the HTTP library would show it
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"key_env: the key in {variable} has a character that no header can hold"
        )
    return key


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[2], 16)) if match[2] else match[1]


def _without(value: Any, key: str) -> Any:
    """JSON without a key in its texts, which a server may repeat."""
    if isinstance(value, str):
        return value.replace(key, "***")
    if isinstance(value, list):
        return [_without(entry, key) for entry in value]
    if isinstance(value, dict):
        return {_without(k, key): _without(v, key) for k, v in value.items()}
    return value


def _parsed(content: bytes) -> Any:
    """JSON; None for what is none."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _outcome(response: httpx.Response, value: Any) -> tuple[int, str]:
    """The status of an answer, and in words what its body says of it. A gateway sends
    errors with the status 200: their body's code counts, or else it is a failure."""
    status = response.status_code
    if status != 200 or not isinstance(value, dict):
        return status, ""
    error = value.get("error")
    if error not in (None, "", {}):
        named = error if isinstance(error, dict) else value
        for code in (named.get("code"), named.get("status"), value.get("code")):
            if str(code).isdecimal() and 400 <= int(str(code)[:4]) < 600:
                return int(str(code)), f", with the error {code}: {_message(value)}"
        return 500, f", with the error {_message(value)}"
    if response.request.url.path.endswith("/v1/completions") and not value.get(
        "choices"
    ):
        return 500, ", and no choices"
    return status, ""


def _message(value: Any) -> str:
    """What a server says of its refusal."""
    error = value.get("error", value) if isinstance(value, dict) else value
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return str(error or "")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header, a number or a date; None without one. A date
    counts from the answer's own, as clocks differ."""
    header = headers.get("Retry-After", "")
    try:
        seconds = float(header)
    except ValueError:
        try:
            until, now = map(parsedate_to_datetime, (header, headers.get("Date", "")))
            seconds = (until - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) + random.random() * _FIRST_WAIT
