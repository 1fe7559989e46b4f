"""Real servers: vLLM's own equals the engine vllm, and llama.cpp's numbers are its own.

llama.cpp needs `RESURFACE_GGUF`, a file that was made from `models/smollm2-135m-instruct`
(`make example`), or from the directory in `RESURFACE_GGUF_BASE`."""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from evaluator.checkpoints.served import Endpoint
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import InputError
from evaluator.engine.base import Generate, Reference
from evaluator.engine.config import EngineConfig
from evaluator.engine.endpoint.engine import EndpointEngine
from evaluator.engine.endpoint.prepare import (
    other_texts,
    prepare_endpoint,
    prepare_gguf,
)
from tests.support.engines import TOLERANCE, answers, needs_vllm, serving
from tests.support.requests import generation, scoring
from tests.support.served import BASE
from tests.support.smollm2 import MODEL

FILE = Path(os.environ.get("RESURFACE_GGUF", "absent"))
FILE_BASE = Path(os.environ.get("RESURFACE_GGUF_BASE", MODEL))
NOISE = 0.5  # nats: of llama.cpp after another history of its cache
needs_llama = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("xllamacpp") is None, reason="xllamacpp is missing"),
    pytest.mark.skipif(
        not (FILE.is_file() and FILE_BASE.is_dir()),
        reason="RESURFACE_GGUF names no file, or its base is absent",
    ),
]
TEXTS = ("The capital of France is", "Der Nil ist", "日本の首都は", "Smile 😀 and")
ANSWERS = (" Paris", " the river", " 東京です")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def requests_of(tokenizer, texts=TEXTS):
    asked = []
    for number, text in enumerate(texts):
        prompt = tokenizer(text)["input_ids"]
        asked.append(generation(f"greedy {number}", prompt, 16, top_logprobs=4))
        for place, answer in enumerate(ANSWERS):
            ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
            asked.append(scoring(f"score {number} {place}", prompt, ids, ranked=True))
    return asked


@pytest.fixture
def vllm_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(BASE), "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "512", "--enforce-eager"]
    command += ["--served-model-name", "tiny"]
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 400
        while True:
            assert process.poll() is None
            assert time.monotonic() < until
            try:
                httpx.get(f"{url}/health", timeout=5).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


class TestVLLM:
    pytestmark = needs_vllm

    @pytest.mark.more
    def test_its_server_equals_our_engine(self, vllm_server):
        asked = requests_of(load_tokenizer(BASE))
        config = EngineConfig(kind="endpoint", max_model_len=512)
        engine = EndpointEngine(config)
        report = engine.load(prepare_endpoint(Endpoint(url=vllm_server), BASE))
        found = answers(engine, asked)
        engine.close()
        abilities = dict(report.abilities)
        assert abilities["scores"], abilities
        assert abilities["ranks"]
        assert abilities["seeds"]
        assert abilities["top"] == 20
        with serving(BASE, EngineConfig(dtype="float32", max_model_len=512)) as own:
            expected = answers(own, asked)
        for request in asked:
            name, answer = request.request_id, expected[request.request_id]
            assert found[name].status == "ok", found[name].error
            assert found[name].token_ids == answer.token_ids, name
            assert found[name].logprobs == pytest.approx(answer.logprobs, abs=TOLERANCE)
            if not isinstance(request, Generate):
                # it counts ties before the token
                for rank, own_rank in zip(found[name].ranks, answer.ranks, strict=True):
                    assert 0 <= rank - own_rank <= 1


def whole(url, prompt, vocabulary):
    """The log-probability of each token, by a request of this test's own: a token of
    the text's end is forced."""
    body = {
        "prompt": [*prompt],
        "n_predict": 1,
        "n_probs": vocabulary,
        "temperature": 0,
        "logit_bias": [[2, 1000.0]],
    }
    answer = httpx.post(f"{url}/completion", json=body, timeout=300).json()
    listed = answer["completion_probabilities"][0]["top_logprobs"]
    row = {entry["id"]: entry["logprob"] for entry in listed}
    assert math.fsum(map(math.exp, row.values())) == pytest.approx(1, abs=0.01)
    return row


class TestLlama:
    pytestmark = needs_llama

    def test_its_numbers_are_its_own(self):
        engine = EndpointEngine(EngineConfig(kind="endpoint", max_model_len=128))
        report = engine.load(prepare_gguf(FILE, FILE_BASE))
        assert report.abilities["scores"], report.abilities
        assert report.abilities["distributions"]
        assert report.setup["file_type"]
        assert (report.setup["slots"], report.setup["batch"]) == ("1", "512")
        assert 1 < float(report.setup["bits_per_weight"]) < 33
        # whole distributions take seconds each
        asked = requests_of(load_tokenizer(FILE_BASE), TEXTS[2:])
        found = answers(engine, asked)
        url = engine._client._servers[0].url
        vocabulary = engine._server.vocabulary
        for request in asked:
            answer = found[request.request_id]
            assert answer.status == "ok", answer.error
            assert len(answer.logprobs) == len(answer.token_ids)
            if isinstance(request, Generate):
                body = {"prompt": [*request.prompt_ids], "temperature": 0}
                body |= {"n_predict": request.max_tokens, "return_tokens": True}
                body |= {"cache_prompt": False}  # as a server that was just started
                plain = httpx.post(f"{url}/completion", json=body, timeout=300).json()
                assert answer.token_ids == tuple(plain["tokens"])
                continue
            total, prompt = 0.0, request.prompt_ids
            for token in request.continuation_ids:
                row = whole(url, prompt, vocabulary)
                if prompt == request.prompt_ids:
                    low, high = (
                        1 + sum(value > row[token] + change for value in row.values())
                        for change in (0.1, -0.1)
                    )
                    assert low <= answer.ranks[0] <= high
                total += row[token]
                prompt += (token,)
            assert sum(answer.logprobs) == pytest.approx(total, abs=NOISE)
        again = answers(engine, asked[::-1])
        for request in asked:
            name = request.request_id
            assert again[name].logprobs == found[name].logprobs, name
        engine.close()

    def test_distributions_are_compared(self, tmp_path):
        """With those of the base in our own engine."""
        ids = tuple(
            load_tokenizer(FILE_BASE)(f"{TEXTS[0]} Paris, as all know.")["input_ids"]
        )
        path = str(tmp_path / "kept.safetensors")
        kept, compared = (
            scoring(
                "score", ids[:3], ids[3:], reference=Reference(path=path, keep=keep)
            )
            for keep in (True, False)
        )
        own = EngineConfig(kind="torch", dtype="float32", max_model_len=128)
        with serving(FILE_BASE, own) as base:
            expected = answers(base, [kept])["score"]
        engine = EndpointEngine(EngineConfig(kind="endpoint", max_model_len=128))
        engine.load(prepare_gguf(FILE, FILE_BASE))
        found = answers(engine, [compared])["score"]
        engine.close()
        assert (expected.status, found.status) == ("ok", "ok"), found.error
        assert len(found.divergences) == len(ids) - 3
        assert all(0 <= each.kld < 1 for each in found.divergences), found.divergences
        assert sum(found.logprobs) == pytest.approx(
            sum(expected.logprobs), abs=len(ids) * NOISE
        )

    def test_its_own_tokenizer_is_compared(self):
        folder = prepare_gguf(FILE, FILE_BASE)
        assert other_texts(folder, [*TEXTS, *ANSWERS, "In 1969, 3.14"]) == ""
        with pytest.raises(InputError, match=r"cannot be read exactly.*llama\.cpp"):
            prepare_gguf(FILE, BASE)  # transformers does not cut numbers

    def test_the_server_ends_with_its_parent(self):
        """However that ends."""
        script = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from evaluator.engine.endpoint.llama_process import LlamaProcess\n"
            "print(LlamaProcess(Path(sys.argv[1]), 64, 1).pid, flush=True)\n"
            "time.sleep(600)\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", script, str(FILE)], stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        parent.wait()
        parent.stdout.close()
        child.wait(timeout=30)
