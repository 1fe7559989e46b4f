"""VLLMEngine on a GPU: the V2 model runner, trace replay, swaps, in the checkpoint's own bfloat16 and in float32."""

import os
import subprocess
import sys

import pytest
import torch

from evaluator.engine.base import Generate, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.self_check import TOLERANCES
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import BATCH_INVARIANT, BREAKABLE
from tests.support.engines import answers, oracle_of
from tests.support.models import save_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),  # what vLLM warns of while it serves on a GPU is no failure of ours
]

FLOAT32_TOLERANCE = TOLERANCES["float32 on a GPU"][0]  # Triton's attention multiplies as TF32
BFLOAT16_TOLERANCE = 0.15  # nats: logits of size 8 have a resolution of 1/32 there, and each side rounds several times
TAKES_AND_FREES = """
import time, torch
while True:
    held = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    time.sleep(0.3)
    del held
    torch.cuda.empty_cache()
    time.sleep(0.3)
"""
ASKED = [
    *(Score(request_id=f"s{n}", prompt_ids=(20,) * n, continuation_ids=(30, 31, 9, 77)) for n in (1, 15, 16, 17, 130)),
    *(Generate(request_id=f"g{n}", prompt_ids=(20,) * n, max_tokens=12, top_logprobs=10) for n in (1, 16, 130)),
]


@pytest.mark.parametrize(
    ("dtype", "graphs"), [("float32", "full"), ("bfloat16", "full"), ("bfloat16", "piecewise"), ("bfloat16", False)]
)
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_untied", "mistral", "phi3"])
def test_scores_and_swaps_agree_with_the_oracle(architecture, dtype, graphs, tmp_path):
    if graphs == "piecewise":
        _skip_unless_first(BREAKABLE)
    one = save_tiny_model(tmp_path / "one", architecture, 0, dtype=dtype)
    other = save_tiny_model(tmp_path / "other", architecture, 1, dtype=dtype)
    config = EngineConfig(max_model_len=256, max_num_seqs=16, gpu_memory_utilization=0.2, cuda_graphs=graphs)
    engine = VLLMEngine(config)
    tolerance = FLOAT32_TOLERANCE if dtype == "float32" else BFLOAT16_TOLERANCE
    for number, checkpoint in enumerate((one, other, one)):
        assert engine.load(checkpoint).swapped == (number > 0)
        assert engine.dtype == dtype
        assert engine._started.dialect.v2
        ours, theirs = answers(engine, ASKED), answers(oracle_of(checkpoint, config), ASKED)
        for request in ASKED:
            answer, expected = ours[request.request_id], theirs[request.request_id]
            if isinstance(request, Score):
                assert answer.token_ids == expected.token_ids
                assert answer.logprobs == pytest.approx(expected.logprobs, abs=tolerance)
                if dtype == "float32":
                    assert answer.ranks == pytest.approx(expected.ranks, abs=2, rel=0.1)
            elif dtype == "float32":
                assert answer.token_ids[0] == expected.token_ids[0]
    engine.close()


def test_two_runs_of_the_same_requests_do_not_mix(tmp_path):
    """A step is scheduled ahead when the first run ends: what it computed must not reach the second."""
    engine = VLLMEngine(EngineConfig(max_model_len=256, max_num_seqs=16, gpu_memory_utilization=0.2))
    early = tuple(range(0, 384, 8))  # an eighth of the vocabulary ends an answer
    engine.load(save_tiny_model(tmp_path / "one", "qwen3", eos_ids=early))
    asked = [Generate(request_id=str(n), prompt_ids=(20 + n,) * 5, max_tokens=16) for n in range(8)]
    runs = [{name: each.token_ids for name, each in answers(engine, asked).items()} for _ in range(3)]
    engine.close()
    assert runs[0] == runs[1] == runs[2]


def test_an_engines_share_of_a_gpu_does_not_depend_on_other_processes(tmp_path):
    """Another process takes and frees 2 GiB, again and again, while the second engine starts."""
    checkpoint, blocks = save_tiny_model(tmp_path / "one", "qwen3"), []
    config = EngineConfig(max_model_len=256, max_num_seqs=16, gpu_memory_utilization=0.1, shared_gpu=True)
    for disturbed in (False, True):
        other = subprocess.Popen([sys.executable, "-c", TAKES_AND_FREES if disturbed else ""])
        engine = VLLMEngine(config)
        engine.load(checkpoint)
        blocks.append(engine._started.llm.vllm_config.cache_config.num_gpu_blocks)
        engine.close()
        other.kill()
        other.wait()
    assert blocks[1] == pytest.approx(blocks[0], rel=0.02)


def test_a_deterministic_engine_does_not_depend_on_the_batch(tmp_path):
    _skip_unless_first(BATCH_INVARIANT)
    config = EngineConfig(max_model_len=256, max_num_seqs=32, gpu_memory_utilization=0.2, deterministic=True)
    engine = VLLMEngine(config)
    engine.load(save_tiny_model(tmp_path / "one", "qwen3", dtype="bfloat16"))
    drawn = {"max_tokens": 8, "temperature": 1.0}
    asked = [Generate(request_id=str(n), prompt_ids=(20,) * (5 + n % 3), seed=n, **drawn) for n in range(24)]
    asked += [request for request in ASKED if isinstance(request, Score)]
    whole = answers(engine, asked)
    alone = {name: each for request in asked for name, each in answers(engine, [request]).items()}
    engine.close()
    assert whole.keys() == alone.keys()
    for name, each in whole.items():
        assert (each.token_ids, each.logprobs) == (alone[name].token_ids, alone[name].logprobs), name


def _skip_unless_first(variable):
    """vLLM reads some variables when it is imported."""
    if "vllm" in sys.modules and os.environ.get(variable) != "1":
        pytest.skip("vLLM runs in this process without it: python -m tests.gpu")
