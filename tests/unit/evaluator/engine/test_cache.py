"""A rounded cache against a list of all float8 numbers, and the oracle with one
against a loop over transformers."""

from operator import sub

import pytest
import torch
from transformers import DynamicCache

from evaluator.engine.cache import FLOAT8, rounded
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from tests.support.models import load_model, save_tiny_model
from tests.support.requests import generation, scoring

PROMPT = tuple(range(20, 60))
CONTINUATION = (33, 200, 7, 380, 90, 91, 92)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("models") / "one", "qwen3", eos_ids=(0,)
    )


def engine_with(checkpoint, kv_cache):
    engine = TorchEngine(
        EngineConfig(kind="torch", max_model_len=64, kv_cache=kv_cache)
    )
    report = engine.load(checkpoint)
    assert report.kv_scales == (None if kv_cache == "auto" else "none")
    return engine


def towards_zero(values, dtype):
    """By looking at every finite number that the dtype has."""
    numbers = (
        torch.arange(256, dtype=torch.uint8).view(getattr(torch, FLOAT8[dtype])).float()
    )
    numbers = numbers[numbers.isfinite() & (numbers >= 0)].unique()
    return (
        numbers[torch.searchsorted(numbers, values.abs(), right=True) - 1]
        * values.sign()
    )


@pytest.mark.parametrize("dtype", FLOAT8)
def test_cpu_rounding_is_towards_zero(dtype):
    """Rounding on a cpu is towards zero and clips."""
    values = torch.randn(
        4000, generator=torch.Generator().manual_seed(0)
    ) * torch.logspace(-6, 6, 4000)
    assert torch.equal(rounded(values, dtype), towards_zero(values, dtype))
    assert torch.equal(
        rounded(values, dtype, 0.25), towards_zero(values * 4, dtype) / 4
    )


def looped(model, dtype, steps):
    """The log-probabilities of the tokens of a continuation, one after the other."""
    cache, ids, found = DynamicCache(), list(PROMPT), []
    for token in steps:
        before = cache.get_seq_length()
        # Each layer's new keys and values are replaced in the cache before its
        # attention reads them.
        for number, layer in enumerate(model.model.layers):
            layer.self_attn._rounded = (cache, number, before, dtype)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), past_key_values=cache).logits
        found.append(float(logits[0, -1].log_softmax(-1)[token]))
        ids = [token]
    return found


@pytest.fixture(scope="module")
def model(checkpoint):
    """transformers, with an attention that rounds what it has written before it
    reads."""
    from transformers.models.qwen3 import modeling_qwen3

    model = load_model(checkpoint)
    model.config._attn_implementation = "eager"
    eager = modeling_qwen3.eager_attention_forward

    def attention(module, query, key, value, mask, **more):
        cache, layer, before, dtype = module._rounded
        for held in (key, value):
            held[:, :, before:] = towards_zero(held[:, :, before:], dtype)
        cache.layers[layer].keys, cache.layers[layer].values = key, value
        return eager(module, query, key, value, mask, **more)

    modeling_qwen3.eager_attention_forward = attention
    yield model
    modeling_qwen3.eager_attention_forward = eager


@pytest.mark.parametrize("dtype", FLOAT8)
def test_oracle_equals_plain_loop(checkpoint, model, dtype):
    engine = engine_with(checkpoint, dtype)
    scored = engine.answer(scoring("s", PROMPT, CONTINUATION))
    assert scored.logprobs == pytest.approx(
        looped(model, dtype, CONTINUATION), abs=1e-4
    )
    written = engine.answer(generation("g", PROMPT, 12))
    assert written.logprobs == pytest.approx(
        looped(model, dtype, written.token_ids), abs=1e-4
    )
    exact = engine_with(checkpoint, "auto").answer(scoring("s", PROMPT, CONTINUATION))
    differences = map(sub, scored.logprobs, exact.logprobs)
    assert max(map(abs, differences)) > 1e-2
