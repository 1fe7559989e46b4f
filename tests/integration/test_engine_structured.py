"""Models without some of their layers, heads and channels in a real engine: it answers as transformers does."""

from __future__ import annotations

import pytest
import torch

from evaluator.engine.base import FixedSource, Generate, Request, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from pruning.verify import verify
from tests.support import pruning as tiny
from tests.support.engines import needs_vllm

pytestmark = needs_vllm

CONFIG = EngineConfig(max_model_len=128, max_num_seqs=8)
TOLERANCE = 1e-4  # nats
ASKED: list[Request] = [
    *(Score(request_id=f"s{n}", prompt_ids=tuple(range(20, 20 + n)), continuation_ids=(30, 31)) for n in (1, 33, 64)),
    *(Generate(request_id=f"g{n}", prompt_ids=tuple(range(20, 20 + n)), max_tokens=12) for n in (1, 33, 64)),
]
OWN_HEAD_SIZE = {"phi3": {"hidden_size": 128}}


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("qwen3", ["layers", "heads", "channels"]),
        pytest.param("qwen3", ["layers"], marks=pytest.mark.long),
        pytest.param("gemma3_text", ["layers", "heads", "channels"], marks=pytest.mark.long),
        pytest.param("phi3", ["heads", "channels"], marks=pytest.mark.long),
        pytest.param("llama", ["heads"], marks=pytest.mark.long),
        pytest.param("mistral", ["heads"], marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_is_left_is_served(name, methods, tmp_path):
    checkpoint = tmp_path / "dense"
    tiny.build(name, checkpoint, torch.float32, **OWN_HEAD_SIZE.get(name, {"head_dim": 32}))
    (tmp_path / "text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    calibration = CalibrationConfig(source=f"text:{tmp_path / 'text.txt'}", samples=8, sequence_length=32)
    for method in methods:
        prune(
            PruneConfig(source=checkpoint, method=method, sparsity=0.5, calibration=calibration, device="cpu"),
            tmp_path / method,
        )
        checkpoint = tmp_path / method
        assert verify(checkpoint) == []
    engine, oracle = VLLMEngine(CONFIG), TorchEngine(CONFIG)
    report = engine.load(checkpoint)
    assert report.notes == ()  # every matrix was compared with the smaller checkpoint's
    oracle.load(checkpoint)
    ours, expected = (
        {response.request_id: response for response in each.run(FixedSource(ASKED))} for each in (engine, oracle)
    )
    for request_id, answer in expected.items():
        assert ours[request_id].token_ids == answer.token_ids
        assert ours[request_id].logprobs == pytest.approx(answer.logprobs, abs=TOLERANCE)
    engine.close()
