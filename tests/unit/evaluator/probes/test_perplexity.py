"""Perplexity: windows of a text, and the engine's numbers against one full forward
pass of transformers."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from evaluator.asking.questions import Window
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.engine.base import Response
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.probes.config import EvalConfig
from evaluator.probes.perplexity import PIECE, windows_of
from tests.support.fake import FakeEngine, FakeLM
from tests.support.letters import letter_evaluation, letter_plan
from tests.support.models import save_tiny_model
from tests.support.sweeps import refused
from tests.support.tokenizers import absent, real_tokenizer

TEXT = (
    "The town of Karo lies on the river Belu, and was founded in 1714.\n" * 9
    + "Онти, బెలు."
)
CONFIG = EvalConfig(task="text:book.txt", probes=("perplexity",))


def records(engine, windows):
    stream = letter_evaluation(
        [letter_plan(window, CONFIG) for window in windows], CONFIG
    )
    found = [record for _, found in stream.run(engine) for record in found]
    return sorted(found, key=lambda record: record.index)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_text_without_tokens_is_refused(tiny):
    assert "no token" in refused(windows_of, "book", "", load_tokenizer(tiny), 64, 128)


@pytest.mark.parametrize("size", [100, 150])
def test_perplexity_equals_full_pass(tiny, size):
    """Every token but a windows first as in one full forward pass."""
    tokenizer = load_tokenizer(tiny)
    windows = windows_of("book", TEXT, tokenizer, size, 2048)
    engine = TorchEngine(EngineConfig(kind="torch", max_model_len=size))
    engine.load(tiny)
    found = records(engine, windows)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32).eval()
    whole = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    assert [list(window.token_ids) for window in windows] == parts
    for number, part in enumerate(parts):
        ids = torch.tensor([part])
        with torch.no_grad():
            logprobs = model(ids).logits[0].log_softmax(-1)
        expected = logprobs[:-1].gather(1, ids[0, 1:, None]).sum().item()
        assert found[number].prompt_tokens == ids.shape[1] - 1
        assert (
            abs(found[number].logprob - expected) <= 1e-4 * found[number].prompt_tokens
        )
    assert sum(record.prompt_tokens for record in found) == len(whole) - len(windows)
    perplexity = math.exp(
        -sum(r.logprob for r in found) / sum(r.prompt_tokens for r in found)
    )
    assert 1 < perplexity < 1e6


def test_failed_and_single_token_windows():
    """A failed piece is a status and a window of one token is excluded."""

    def script(request):
        if len(request.prompt_ids) > PIECE:
            return Response(
                request_id=request.request_id, status="engine_error", error="too long"
            )
        return FakeLM().answer(request)

    windows = [Window.of("book", 0, [1] * 100), Window.of("book", 1, [1])]
    failed, single = records(FakeEngine(script), windows)
    assert (failed.status, failed.logprob, failed.text) == (
        "engine_error",
        None,
        "too long",
    )
    assert (single.status, single.logprob, single.prompt_tokens) == (
        "excluded",
        None,
        0,
    )


@pytest.mark.skipif(absent("mistral"), reason="its vocabulary is not here")
def test_windows_begin_with_tokenizers_bos():
    tokenizer = real_tokenizer("mistral")
    bare = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    bos = [tokenizer.bos_token_id]
    windows = windows_of("book", TEXT, tokenizer, 64, 4096)
    ids = [list(window.token_ids) for window in windows]
    assert [len(each) for each in ids[:-1]] == [64 + len(bos)] * (len(ids) - 1)
    assert {tuple(each[: len(bos)]) for each in ids} == {tuple(bos)}
    assert [token for each in ids for token in each[len(bos) :]] == bare
    # as many as fit the model's positions, the BOS among them
    assert (
        max(
            len(window.token_ids)
            for window in windows_of("book", TEXT, tokenizer, 64, 50)
        )
        == 50
    )
