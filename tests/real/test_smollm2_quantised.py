"""SmolLM2-135M-Instruct, rounded to float8: vLLM's kernels and transformers with the dequantised weights agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from evaluator.engine.base import Generate
from evaluator.engine.config import EngineConfig
from tests.support.quantised import quantise, rounding_inputs
from tests.support.smollm2 import MARKS, MODEL, ask, candidates, full_pass, items, prompter

pytestmark = MARKS
# Nats per token, and in the mean over tokens. Products of float8 are exact in float32; an input that lies between two
# float8 values may be rounded to either, 6 % apart, in each of 210 matrices: 0.66 nats were seen in one token of 36.
TOLERANCE, MEAN_TOLERANCE = 1.0, 0.25
TOKENS = 12


@dataclass(frozen=True)
class Served:
    engine: Any
    model: Any  # transformers', of the values that the quantised weights stand for
    tokenizer: Any


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from evaluator.engine.vllm.engine import VLLMEngine

    folder: Path = tmp_path_factory.mktemp("fp8")
    checkpoint = quantise(MODEL, folder / "quantised", "fp8", twin=folder / "twin")
    model = AutoModelForCausalLM.from_pretrained(folder / "twin", dtype="float32").eval()
    engine = VLLMEngine(EngineConfig(dtype="float32", max_model_len=640, max_num_seqs=16))
    assert engine.load(checkpoint).notes == ()
    yield Served(engine, rounding_inputs(model, "fp8"), AutoTokenizer.from_pretrained(MODEL))
    engine.close()


def test_candidates_are_as_likely(served: Served) -> None:
    asked = candidates(served.tokenizer)
    found = ask(served.engine, asked)
    off = [
        abs(ours - theirs)
        for request in asked
        for ours, theirs in zip(found[request.request_id].logprobs, full_pass(served.model, request), strict=True)
    ]
    print(f"{len(off)} tokens, max {max(off):.2g}, mean {sum(off) / len(off):.2g} nats")
    assert max(off) <= TOLERANCE
    assert sum(off) / len(off) <= MEAN_TOLERANCE


def test_greedy_answers_are_its_likeliest_tokens(served: Served) -> None:
    import torch

    ours = prompter(served.tokenizer)
    prompts = {item.item_id: ours.build(item, "open").token_ids for item in items()}
    requests = [Generate(request_id=name, prompt_ids=ids, max_tokens=TOKENS) for name, ids in prompts.items()]
    for name, response in ask(served.engine, requests).items():
        ids = torch.tensor([prompts[name] + response.token_ids])
        with torch.no_grad():
            rows = served.model(ids).logits[0, len(prompts[name]) - 1 : -1].log_softmax(-1)
        chosen = rows.gather(1, torch.tensor(response.token_ids)[:, None])[:, 0]
        assert response.token_ids
        assert bool((rows.max(-1).values - chosen <= TOLERANCE).all())
