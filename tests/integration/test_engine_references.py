"""Distributions kept and compared inside the real vLLM, against transformers' own in
float32."""

import json
import random

import pytest
import torch

from evaluator.engine.base import Reference
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, both_runners
from tests.support.engines import random_tokens as tokens
from tests.support.models import load_model, save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners

TOLERANCE = 2e-4  # nats; shares and probabilities
CONFIG = EngineConfig(max_model_len=320, max_num_seqs=12, dtype="float32")


def passages():
    draw = random.Random(1)
    shared = tokens(draw, 70)
    found = [
        (tokens(draw, draw.randrange(1, 100)), tokens(draw, count))
        for count in (1, 2, 31, 32, 33, 64)
    ]
    found += [(shared, tokens(draw, count)) for count in (1, 5, 64)]
    found.append((shared, found[-1][1][:40]))
    return found


def requests(folder, *, keep, top=0):
    return [
        scoring(
            f"{number}",
            prompt,
            continuation,
            reference=Reference(
                path=str(folder / f"{number}.safetensors"), keep=keep, top=top
            ),
        )
        for number, (prompt, continuation) in enumerate(passages())
    ]


def answered(engine, asked):
    others = [
        *(generation(f"g{n}", prompt, 6) for n, (prompt, _) in enumerate(passages())),
        *(scoring(f"s{n}", p, c) for n, (p, c) in enumerate(passages())),
    ]
    mixed = [
        each
        for pair in zip(others, [*asked, *[None] * len(others)], strict=False)
        for each in pair
        if each
    ]
    found = answers(engine, mixed)
    assert len(found) == len(asked) + len(others)
    for request in asked:
        plain = found[f"s{request.request_id}"]
        assert found[request.request_id].logprobs == pytest.approx(
            plain.logprobs, abs=TOLERANCE
        )
        assert found[request.request_id].token_ids == plain.token_ids
    return [found[request.request_id] for request in asked]


def distributions(checkpoint):
    model = load_model(checkpoint)
    with torch.no_grad():
        return [
            model(torch.tensor([prompt + continuation]))
            .logits[0, len(prompt) - 1 : -1]
            .double()
            .log_softmax(1)
            for prompt, continuation in passages()
        ]


def check(response, p_TV, q_TV, *, bound=False):
    assert response.status == "ok", response.error
    assert len(response.divergences) == len(response.token_ids) == len(p_TV)
    kld, reverse = (
        (p_TV.exp() * (p_TV - q_TV)).sum(1),
        (q_TV.exp() * (q_TV - p_TV)).sum(1),
    )
    overlap = torch.minimum(p_TV.exp(), q_TV.exp()).sum(1)
    for t, (each, token) in enumerate(
        zip(response.divergences, response.token_ids, strict=True)
    ):
        if bound:
            assert each.kld <= kld[t] + TOLERANCE
            assert each.acceptance >= overlap[t] - TOLERANCE
        else:
            assert each.kld == pytest.approx(float(kld[t]), abs=TOLERANCE)
            assert each.kld_reverse == pytest.approx(float(reverse[t]), abs=TOLERANCE)
            assert each.acceptance == pytest.approx(float(overlap[t]), abs=TOLERANCE)
        assert each.reference_logprob == pytest.approx(
            float(p_TV[t, token]), abs=TOLERANCE
        )
        assert each.reference_top == pytest.approx(
            float(p_TV[t].exp().max()), abs=TOLERANCE
        )
        assert response.logprobs[t] == pytest.approx(
            float(q_TV[t, token]), abs=TOLERANCE
        )
        if (q_TV[t].topk(2).values.diff().abs() > TOLERANCE) and (
            p_TV[t].topk(2).values.diff().abs() > TOLERANCE
        ):
            assert each.same_top == (int(p_TV[t].argmax()) == int(q_TV[t].argmax()))


def test_references_of_swapped_checkpoint(tmp_path):
    """A swapped checkpoint against its base and the base against itself."""
    base, other = (
        save_tiny_model(tmp_path / f"{seed}", "qwen3", seed, eos_ids=(0,))
        for seed in (0, 1)
    )
    engine = VLLMEngine(CONFIG)
    engine.load(base)
    for top in (0, 5):
        for response in answered(
            engine, requests(tmp_path / f"kept-{top}", keep=True, top=top)
        ):
            assert (response.status, response.divergences) == ("ok", ())
        for response in reversed(
            answered(
                engine, requests(tmp_path / f"kept-{top}", keep=False, top=top)[::-1]
            )
        ):
            assert max(each.kld for each in response.divergences) < 1e-6
            assert min(each.acceptance for each in response.divergences) > 1 - TOLERANCE
    engine.load(other)
    p, q = distributions(base), distributions(other)
    for top in (0, 5):
        found = answered(
            engine, requests(tmp_path / f"kept-{top}", keep=False, top=top)
        )
        for response, p_TV, q_TV in zip(found, p, q, strict=True):
            check(response, p_TV, q_TV, bound=top > 0)
    missing = answers(engine, requests(tmp_path / "nowhere", keep=False)[:1])["0"]
    assert missing.status == "engine_error"
    assert "are not there" in str(missing.error)
    engine.close()


@pytest.mark.more
def test_references_without_cache_cuts(tmp_path):
    """A sliding window, and a configured slow way of scoring."""
    base, other = (
        save_tiny_model(tmp_path / f"{seed}", "mistral", seed, eos_ids=(0,))
        for seed in (0, 1)
    )
    for checkpoint in (base, other):
        config = json.loads((checkpoint / "config.json").read_text())
        (checkpoint / "config.json").write_text(
            json.dumps(config | {"sliding_window": 64})
        )
    engine = VLLMEngine(CONFIG.model_copy(update={"scoring": "prompt_logprobs"}))
    engine.load(base)
    answered(engine, requests(tmp_path / "kept", keep=True))
    engine.load(other)
    found = answered(engine, requests(tmp_path / "kept", keep=False))
    for response, p_TV, q_TV in zip(
        found, distributions(base), distributions(other), strict=True
    ):
        check(response, p_TV, q_TV)
    engine.close()
