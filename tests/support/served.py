"""A server of `FakeLM` over HTTP, in the dialects of llama.cpp, vLLM and plain texts.

Its model's log-probabilities are known exactly. `spoil` changes each answer, and
`before` each exchange, so that a server can lie, stall or die."""

import contextlib
import functools
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evaluator.checkpoints.served import Endpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from evaluator.engine.base import Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.endpoint.engine import EndpointEngine
from evaluator.engine.endpoint.prepare import prepare_endpoint
from tests.support.fake import FakeLM, nucleus

BASE = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
VOCABULARY = 3072
EOS = frozenset({0})
Answer = dict[str, Any]
Row = npt.NDArray[np.float64]


class EndingLM(FakeLM):
    """One that ends often; `stops` are as likely."""

    def __init__(self, *, seed: int = 0, stops: Sequence[int] = (), lift: float = 6.0):
        super().__init__(vocabulary=VOCABULARY, eos_ids=EOS, seed=seed)
        self._ends = (*EOS, *stops)
        self._lift = lift

    def logprobs(self, prefix: tuple[int, ...]) -> Row:
        return _ending_row(self._seed, self._ends, self._lift, prefix)


class AveragingLM(EndingLM):
    """One that sees how often each token is there, in parts of all, as attention does,
    and the last token."""

    def logprobs(self, prefix: tuple[int, ...]) -> Row:
        counts = sorted(Counter(prefix).items())
        divisor = math.gcd(*(count for _, count in counts))
        parts = [part for token, count in counts for part in (token, count // divisor)]
        return _ending_row(self._seed, self._ends, self._lift, (*parts, prefix[-1]))


@functools.lru_cache(2000)  # of all tests, which ask the same again and again
def _ending_row(
    seed: int, ends: tuple[int, ...], lift: float, prefix: tuple[int, ...]
) -> Row:
    logits = FakeLM(vocabulary=VOCABULARY, seed=seed).logprobs(prefix).copy()
    logits[list(ends)] += lift
    normalised: Row = logits - np.logaddexp.reduce(logits)
    normalised.setflags(write=False)
    return normalised


_tokenizer_of_base = functools.cache(lambda: load_tokenizer(BASE))


class FakeServer:
    """`dialect`: llama, vllm or openai. Counts what it is asked."""

    def __init__(self, dialect: str = "llama", lm: FakeLM | None = None) -> None:
        self.dialect = dialect
        self.lm = lm or EndingLM()
        self.model = "tiny"
        self.context = 512
        self.slots = 64
        self.ends = EOS  # the server's own
        self.penalty = 1.0  # of repetitions, by default
        self.top_k = 0  # by default
        # what a server of texts reads of their tokens, and whether it counts them
        self.reads: Callable[[list[int]], list[int]] = lambda ids: ids
        self.counts = True
        # tokens that end inside a character
        self.partial: frozenset[int] = frozenset()
        # what it reports of a row, at a temperature
        self.report: Callable[[Row, float], Row] = lambda row, temperature: row
        self.most_top = 10**6
        self.ignored: frozenset[str] = frozenset()  # fields of a request
        # llama.cpp's: how each slot's cache was filled changes numbers
        self.remembers = False
        self._caches: dict[int, list[tuple[int, int]]] = {}
        self.spoil: Callable[[Answer, Answer], Any] = lambda body, answer: answer
        # may answer in its own way; then returns True
        self.before: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
        self.asked: list[tuple[str, Answer, dict[str, str]]] = []
        self.in_flight = self.most_in_flight = 0
        self.seconds = 0.0  # of an answer
        self.crowd = 0  # requests in flight that the first answer waits for
        self._lock = threading.Lock()
        self._crowded = threading.Event()
        self._rng = np.random.default_rng(1)
        self._tokenizer = _tokenizer_of_base()

    def wait_for(self, crowd: int) -> None:
        """Count anew, and answer nothing before ``crowd`` requests are in flight."""
        self._crowded.clear()
        self.most_in_flight, self.crowd = 0, crowd

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Its address."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, path: str, body: Answer) -> tuple[int, Any]:
        """Status and JSON."""
        ways: dict[str, dict[str, Callable[[Answer], Any]]] = {
            "llama": {
                "/props": self._props,
                "/v1/models": self._models,
                "/completion": self._llama,
            },
            "vllm": {
                "/version": lambda _: {"version": "1"},
                "/v1/models": self._models,
                "/v1/completions": self._vllm,
            },
            "openai": {"/v1/models": self._models, "/v1/completions": self._openai},
        }
        way = ways[self.dialect].get(path)
        if way is None:
            return 404, {"error": {"message": "no such path"}}
        body = {name: body[name] for name in body if name not in self.ignored}
        try:
            return 200, self.spoil(body, way(body))
        except _RefusalError as error:
            return 400, {"error": {"message": str(error)}}

    def _models(self, body: Answer) -> Answer:
        meta = {"n_vocab": self.lm.vocabulary, "n_params": 9}
        entry = {"id": self.model, "max_model_len": self.context, "meta": meta}
        return {"data": [entry]}

    def _props(self, body: Answer) -> Answer:
        return {
            "default_generation_settings": {"n_ctx": self.context},
            "total_slots": self.slots,
            "build_info": "b1",
            "model_ftype": "Q4_1",
        }

    def _steps(
        self, body: Answer, length: str, bias: dict[int, float], ends: frozenset[int]
    ) -> list[tuple[int, Row]]:
        """Tokens, and what is reported of each one's row."""
        if isinstance(body["prompt"], str):
            raise _RefusalError("a prompt is its tokens")
        prompt, most = tuple(body["prompt"]), body[length]
        if len(prompt) + most > self.context + (self.dialect == "llama"):
            raise _RefusalError("exceeds the available context size")
        if max(prompt) >= self.lm.vocabulary:
            raise _RefusalError("Prompt contains invalid tokens")
        temperature = body.get("temperature", 0.8)
        request = Generate(
            request_id="",
            prompt_ids=prompt,
            max_tokens=most,
            temperature=temperature,
            top_p=body.get("top_p", 0.95),
        )
        draw = self._rng
        if "seed" in body:
            draw = np.random.default_rng(body["seed"])
        steps: list[tuple[int, Row]] = []
        while len(steps) < most and not (steps and steps[-1][0] in ends):
            row = self.lm.logprobs(prompt + tuple(token for token, _ in steps))
            biased = self._cut(row, body)
            seen = [*prompt, *(token for token, _ in steps)]
            biased[seen] *= body.get("repetition_penalty", self.penalty)
            for token, change in bias.items():
                biased[token] += change
            token = int(biased.argmax())
            if temperature:
                token = nucleus(biased, request, draw)
            steps.append((token, self.report(row, temperature)))
        return steps

    def _cut(self, row: Row, body: Answer) -> Row:
        """Without the tokens that top_k and min_p leave out."""
        cut, most = row.copy(), body.get("top_k", self.top_k)
        if most > 0:
            cut[row < np.sort(row)[-int(most)]] = -np.inf
        if (least := body.get("min_p", 0.0)) > 0:
            cut[row < row.max() + math.log(least)] = -np.inf
        return cut

    def _llama(self, body: Answer) -> Answer:
        bias = dict(body.get("logit_bias", ()))
        count = min(body.get("n_probs", 0), self.most_top)
        steps = self._steps(body, "n_predict", bias, self.ends)
        if self.remembers:
            steps = self._as_read(body, steps)
        listed = [
            {
                "id": token,
                "logprob": float(row[token]),
                "top_logprobs": [
                    {"id": other, "logprob": float(row[other])}
                    for other in _likeliest(row, count)
                ],
            }
            for token, row in steps
            if count and token not in self.partial
        ]
        answer = {
            "tokens": [token for token, _ in steps],
            "tokens_predicted": len(steps),
            "tokens_evaluated": len(body["prompt"]),
            "truncated": False,
            "model": self.model,
            "timings": {"cache_n": 0},
        }
        # the field is missing where it is empty
        return answer | ({"completion_probabilities": listed} if listed else {})

    def _as_read(self, body: Answer, steps: list[tuple[int, Row]]) -> Any:
        """The rows shifted by what the batches were in which the slot read its
        tokens."""
        prompt, slot = body["prompt"], body.get("id_slot", -1)
        cache = self._caches.get(slot, [])
        known = 0
        if body.get("cache_prompt", True):
            pairs = zip(prompt, cache, strict=False)
            same = [token == other for token, (other, _) in pairs]
            known = min([*same, False].index(False), len(prompt) - 1)
        new = len(prompt) - known
        cache = cache[:known] + [(token, new) for token in prompt[known:]]
        shifted = []
        for token, row in steps:
            shift = np.random.default_rng(sum(size**3 for _, size in cache)).random()
            shifted.append((token, row - shift / 1000))
            cache = [*cache, (token, 1)]
        self._caches[slot] = cache[:-1]
        return shifted

    def _vllm(self, body: Answer) -> Answer:
        if body["model"] != self.model:
            raise _RefusalError(f"the model {body['model']} does not exist")
        if body.get("logprobs", 0) > self.most_top:
            raise _RefusalError("requested more log-probabilities than allowed")
        prompt = body["prompt"]
        own = frozenset() if body.get("ignore_eos") else self.ends
        ends = own | frozenset(body.get("stop_token_ids", ()))
        bias = {
            int(token): change for token, change in body.get("logit_bias", {}).items()
        }
        steps = self._steps(body, "max_tokens", bias, ends)
        ids = [token for token, _ in steps]
        choice: Answer = {"token_ids": ids, "prompt_token_ids": prompt}
        if "logprobs" in body:
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in ids],
                "token_logprobs": [float(row[token]) for token, row in steps],
                "top_logprobs": [
                    {
                        f"token_id:{other}": float(row[other])
                        for other in {token, *_likeliest(row, body["logprobs"])}
                    }
                    for token, row in steps
                ],
            }
        if "prompt_logprobs" in body:
            places: list[Any] = [None]
            for place, token in enumerate(prompt[1:], 1):
                row = self.report(self.lm.logprobs(tuple(prompt[:place])), 0.0)
                others = {token, *_likeliest(row, body["prompt_logprobs"])}
                places.append(
                    {
                        str(other): {
                            "logprob": float(row[other]),
                            "rank": int((row > row[other]).sum()) + 1,
                        }
                        for other in others
                    }
                )
            choice["prompt_logprobs"] = places
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return {"model": self.model, "usage": usage, "choices": [choice]}

    def _openai(self, body: Answer) -> Answer:
        ids = self._tokenizer.encode(body["prompt"], add_special_tokens=False)
        ids = self.reads(ids)
        steps = self._steps(body | {"prompt": ids}, "max_tokens", {}, self.ends)
        tokens = [token for token, _ in steps]
        ended = tokens[-1] in self.ends
        text = self._tokenizer.decode(tokens[:-1] if ended else tokens)
        reason = "stop" if ended else "length"
        usage = {"completion_tokens": len(tokens)}
        usage |= {"prompt_tokens": len(ids)} if self.counts else {}
        return {"usage": usage, "choices": [{"text": text, "finish_reason": reason}]}


class _RefusalError(Exception):
    pass


def _likeliest(row: Row, count: int) -> list[int]:
    ids: list[int] = np.argsort(-row, kind="stable")[:count].tolist()
    return ids


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._handle({})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._handle(json.loads(self.rfile.read(length)))

        def _handle(self, body: Answer) -> None:
            with fake._lock:
                fake.asked.append((self.path, body, dict(self.headers)))
                fake.in_flight += 1
                fake.most_in_flight = max(fake.most_in_flight, fake.in_flight)
                if fake.in_flight >= fake.crowd:
                    fake._crowded.set()
            try:
                if fake.crowd:
                    fake._crowded.wait(timeout=60)
                time.sleep(fake.seconds)
                if not fake.before(self):
                    status, answer = fake.answer(self.path, body)
                    send(self, status, json.dumps(answer).encode())
            except ConnectionError:
                self.close_connection = True
            finally:
                with fake._lock:
                    fake.in_flight -= 1

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    return Handler


def send(
    handler: BaseHTTPRequestHandler, status: int, content: bytes, **headers: str
) -> bool:
    """Answer in a server's place (`before`)."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)
    handler.wfile.flush()
    return True


@contextlib.contextmanager
def endpoint_engine(
    server: FakeServer,
    meanwhile: Callable[[], None] = lambda: None,
    others: Sequence[FakeServer] = (),
    **fields: Any,
) -> Iterator[EndpointEngine]:
    """An engine that has loaded what a fake server serves, and `others` with it.
    `meanwhile` is called between the preparation and the load; `fields`: of the
    endpoint."""
    config = EngineConfig(kind="endpoint", max_model_len=server.context)
    with (
        contextlib.ExitStack() as stack,
        contextlib.closing(EndpointEngine(config)) as engine,
    ):
        urls = [stack.enter_context(each.serving()) for each in (server, *others)]
        folder = prepare_endpoint(Endpoint(url=tuple(urls), **fields), BASE)
        meanwhile()
        engine.load(folder)
        yield engine


def refusal_of(server: FakeServer) -> str:
    """Why an engine refuses a fake server; empty: it does not."""
    try:
        with endpoint_engine(server):
            return ""
    except InputError as error:
        return str(error)
