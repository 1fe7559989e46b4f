"""A rounded cache against a list of all float8 numbers, and the oracle with one
against a loop over transformers."""

import pytest
import torch
from transformers import DynamicCache

from evaluator.engine import torch_engine
from evaluator.engine.base import Reference
from evaluator.engine.cache import FLOAT8, new_cache, rounded
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


def engine_with(checkpoint, kv_cache, kind=TorchEngine):
    engine = kind(EngineConfig(kind="torch", max_model_len=64, kv_cache=kv_cache))
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


def looped(model, dtype, prompt, continuation):
    """Log-probabilities of a continuation, token by token, or of the likeliest
    tokens if it is a number of them."""
    cache, ids, found, tokens = DynamicCache(), prompt, [], []
    steps = continuation if isinstance(continuation, int) else len(continuation)
    own = [each.self_attn for each in model.model.layers]
    for step in range(steps):
        before = cache.get_seq_length()
        with torch.no_grad():
            # Each layer's new keys and values are replaced in the cache before its
            # attention reads them.
            for layer, attention in enumerate(own):
                attention._rounded = (cache, layer, before, dtype)
            logprobs = (
                model(torch.tensor([ids]), past_key_values=cache)
                .logits[0, -1]
                .log_softmax(-1)
            )
        token = (
            int(logprobs.argmax())
            if isinstance(continuation, int)
            else continuation[step]
        )
        found.append(float(logprobs[token]))
        tokens.append(token)
        ids = [token]
    return tokens, found


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
        looped(model, dtype, list(PROMPT), CONTINUATION)[1], abs=1e-4
    )
    written = engine.answer(generation("g", PROMPT, 12))
    tokens, logprobs = looped(model, dtype, list(PROMPT), 12)
    assert list(written.token_ids) == tokens[: len(written.token_ids)]
    assert written.logprobs == pytest.approx(
        logprobs[: len(written.token_ids)], abs=1e-4
    )
    exact = engine_with(checkpoint, "auto").answer(scoring("s", PROMPT, CONTINUATION))
    assert (
        max(abs(a - b) for a, b in zip(scored.logprobs, exact.logprobs, strict=True))
        > 1e-2
    )


def forgetful(dtype):
    """A cache that has lost the newest two tokens of earlier steps when a later step
    reads it."""
    cache = new_cache(dtype)
    update = cache.update

    def lossy(keys, values, layer, *args, **more):
        earlier = cache.get_seq_length(layer)
        keys, values = update(keys, values, layer, *args, **more)
        keys, values = keys.clone(), values.clone()
        for held in (keys, values):
            held[:, :, max(0, earlier - 2) : earlier] = 0
        return keys, values

    cache.update = lossy
    return cache


class Forgetful(TorchEngine):
    def answer(self, request):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_engine, "new_cache", forgetful)
            return super().answer(request)


def test_lost_newest_tokens_show_when_forced(checkpoint, tmp_path):
    """A prefill reads what it has just written itself: there the loss stays hidden.
    Scores, fidelity and answers with a rounded cache read it in each step."""
    sound, faulty = (
        engine_with(checkpoint, "fp8"),
        engine_with(checkpoint, "fp8", Forgetful),
    )
    prefilled = scoring("p", PROMPT, CONTINUATION[:1])
    assert faulty.answer(prefilled).logprobs == sound.answer(prefilled).logprobs

    def score(keep):
        path = str(tmp_path / "kept.safetensors")
        return scoring(
            "s", PROMPT, CONTINUATION, reference=Reference(path=path, keep=keep)
        )

    kept = sound.answer(score(True))
    floor, shown = sound.answer(score(False)), faulty.answer(score(False))
    assert max(each.kld for each in floor.divergences) < 1e-9
    assert [each.kld > 1e-3 for each in shown.divergences] == [False] + [True] * (
        len(CONTINUATION) - 1
    )
    assert shown.logprobs[0] == kept.logprobs[0]
    assert all(
        abs(a - b) > 1e-3
        for a, b in zip(shown.logprobs[1:], kept.logprobs[1:], strict=True)
    )
    greedy = generation("g", PROMPT, 12)
    assert faulty.answer(greedy).logprobs != sound.answer(greedy).logprobs
