"""Rounded caches of the real vLLM, on either runner, against the plain engine's."""

import random
from statistics import median

import pytest
import torch
from msgspec import structs

from evaluator.engine.base import Reference, Score
from evaluator.engine.cache import FLOAT8, rounded
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.arguments import cache_dtypes
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, both_runners, oracle_of, random_tokens
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners
ON_A_CPU = cache_dtypes(on_cpu=True)
# A difference of 1e-7 may round a number to its neighbour, an eighth away (e4m3) or a
# quarter (e5m2).
FLIPPED = {"fp8": 0.05, "fp8_e4m3": 0.05, "fp8_e5m2": 0.3}


def asked():
    """Answers and scores after prompts of their own, and after one that they share."""
    draw = random.Random(1)
    shared = random_tokens(draw, 75)
    found = []
    for number in range(10):
        prompt = (
            shared + random_tokens(draw, number)
            if number % 2
            else random_tokens(draw, 40 + number)
        )
        tokens = random_tokens(draw, 1 + number)
        found.append(scoring(f"s{number}", prompt, tokens))
        found.append(generation(f"g{number}", prompt, 8))
    return found


@pytest.mark.parametrize("kv_cache", ON_A_CPU[1:])
def test_float8_cache_equals_oracle(tmp_path, kv_cache):
    checkpoint = save_tiny_model(tmp_path / "model", "qwen3", 0, eos_ids=(0,))
    config = EngineConfig(
        max_model_len=320, max_num_seqs=12, dtype="float32", kv_cache=kv_cache
    )
    engine, oracle = VLLMEngine(config), oracle_of(checkpoint, config)
    report = engine.load(checkpoint)
    assert (report.scoring, report.kv_scales, report.setup["scoring"]) == (
        "forced",
        "none",
        "by forced decoding",
    )
    found = answers(engine, asked())
    engine.close()
    distances = []
    for request in asked():
        answer, expected = found[request.request_id], oracle.answer(request)
        assert answer.status == "ok"
        both = zip(
            answer.token_ids,
            expected.token_ids,
            answer.logprobs,
            expected.logprobs,
            strict=True,
        )
        distances += [abs(a - b) for one, other, a, b in both if one == other]
    assert len(distances) > 100
    assert median(distances) < 1e-5
    assert max(distances) < FLIPPED[kv_cache]


@pytest.mark.parametrize("kv_cache", ON_A_CPU[1:])
def test_float8_bits_equal_oracle(kv_cache):
    from vllm import _custom_ops as kernels

    heads, width, block = 3, 32, 32
    values_THD = (
        torch.randn(block, heads, width) * torch.logspace(-4, 3, block)[:, None, None]
    )
    blocks = torch.zeros(1, heads, 2 * block, width, dtype=torch.uint8)
    keys, cached = blocks.chunk(2, dim=2)
    settings = {"k_scale": 0.5, "v_scale": 0.37, "kv_cache_dtype": kv_cache}
    kernels.cpu_attn_reshape_and_cache(
        values_THD, values_THD, keys, cached, torch.arange(block), "vec", **settings
    )
    written_HTD = (
        cached[0].contiguous().view(getattr(torch, FLOAT8[kv_cache])).float() * 0.37
    )
    assert torch.equal(written_HTD.transpose(0, 1), rounded(values_THD, kv_cache, 0.37))


def test_cpu_cache_dtypes_are_vllms():
    """The engine starts with the others too, and computes nonsense."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert {*ON_A_CPU} <= {*CPUAttentionBackend.supported_kv_cache_dtypes}


def test_gpu_cache_dtypes_are_vllms():
    """A gpu's caches are names that vllm knows."""
    from typing import get_args

    from vllm.config.cache import CacheDType

    assert {*cache_dtypes(on_cpu=False)} <= {*get_args(CacheDType)}


@pytest.mark.parametrize("kv_cache", ON_A_CPU[1:2])
def test_distributions_are_compared_token_by_token(tmp_path, kv_cache):
    """Those of an exact cache, by the engine itself with a rounded one, among other
    requests; against the oracle's."""
    checkpoint = save_tiny_model(tmp_path / "model", "qwen3", 0, eos_ids=(0,))
    exact = EngineConfig(max_model_len=320, max_num_seqs=12, dtype="float32")
    config = exact.model_copy(update={"kv_cache": kv_cache})

    def scores(*, keep):
        for each in asked():
            if isinstance(each, Score):
                reference = Reference(
                    path=str(tmp_path / f"{each.request_id}.safetensors"), keep=keep
                )
                yield structs.replace(
                    each, request_id=f"r{each.request_id}", reference=reference
                )

    base, oracle, engine = (
        oracle_of(checkpoint, exact),
        oracle_of(checkpoint, config),
        VLLMEngine(config),
    )
    assert all(base.answer(each).status == "ok" for each in scores(keep=True))
    engine.load(checkpoint)
    mixed = [
        each for pair in zip(scores(keep=False), asked(), strict=False) for each in pair
    ]
    found, alone = answers(engine, mixed), answers(engine, list(asked()))
    engine.close()
    distances = []
    for request in scores(keep=False):
        answer, expected = found[request.request_id], oracle.answer(request)
        assert answer.logprobs == pytest.approx(
            alone[request.request_id[1:]].logprobs, abs=FLIPPED[kv_cache]
        )
        both = list(zip(answer.divergences, expected.divergences, strict=True))
        assert len(both) == len(request.continuation_ids)
        assert all(
            ours.reference_logprob == pytest.approx(theirs.reference_logprob, abs=1e-6)
            for ours, theirs in both
        )
        distances += [abs(ours.kld - theirs.kld) for ours, theirs in both]
    assert median(distances) < 1e-5
    assert max(distances) < FLIPPED[kv_cache]
