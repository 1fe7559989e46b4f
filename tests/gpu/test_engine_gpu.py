"""VLLMEngine on a GPU: the V2 model runner, trace replay, swaps, in the checkpoint's own bfloat16 and in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evaluator.engine.base import FixedSource, Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.models import save_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

BFLOAT16_TOLERANCE = 0.15  # nats: logits of size 8 have a resolution of 1/32 there, and each side rounds several times
ASKED = [
    *(Score(request_id=f"s{n}", prompt_ids=(20,) * n, continuation_ids=(30, 31, 9, 77)) for n in (1, 15, 16, 17, 130)),
    *(Generate(request_id=f"g{n}", prompt_ids=(20,) * n, max_tokens=12, top_logprobs=10) for n in (1, 16, 130)),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_untied", "mistral", "phi3"])
def test_scores_and_swaps_agree_with_the_oracle(architecture: str, dtype: str, tmp_path: Path) -> None:
    one = save_tiny_model(tmp_path / "one", architecture, 0, dtype=dtype)
    other = save_tiny_model(tmp_path / "other", architecture, 1, dtype=dtype)
    config = EngineConfig(max_model_len=256, max_num_seqs=16, gpu_memory_utilization=0.2)
    engine, oracle = VLLMEngine(config), TorchEngine(config)
    tolerance = 1e-3 if dtype == "float32" else BFLOAT16_TOLERANCE
    for number, checkpoint in enumerate((one, other, one)):
        assert engine.load(checkpoint).swapped == (number > 0)
        assert engine.dtype == dtype
        assert engine._started.dialect.v2
        oracle.load(checkpoint)
        ours = {r.request_id: r for r in engine.run(FixedSource(ASKED))}
        theirs = {r.request_id: r for r in oracle.run(FixedSource(ASKED))}
        for request in ASKED:
            answer, expected = ours[request.request_id], theirs[request.request_id]
            if isinstance(request, Score):
                assert answer.token_ids == expected.token_ids
                assert answer.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
                if dtype == "float32":
                    assert answer.ranks == expected.ranks
            elif dtype == "float32":
                assert answer.token_ids == expected.token_ids
    engine.close()


def test_samples_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    engine = VLLMEngine(EngineConfig(max_model_len=256, max_num_seqs=16, gpu_memory_utilization=0.2))
    engine.load(save_tiny_model(tmp_path / "one", "qwen3"))
    asked = [
        Generate(request_id=str(n), prompt_ids=(20,) * (5 + n % 3), max_tokens=8, temperature=1.0, top_p=0.9, seed=n)
        for n in range(24)
    ]
    whole = {r.request_id: r.token_ids for r in engine.run(FixedSource(asked))}
    alone = {r.request_id: r.token_ids for n in range(24) for r in engine.run(FixedSource(asked[n : n + 1]))}
    engine.close()
    assert whole == alone
