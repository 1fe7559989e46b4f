"""VLLMEngine on a GPU: the V2 model runner, trace replay, swaps, in the checkpoint's
own bfloat16 and in float32."""

import os
import subprocess
import sys

import pytest
import torch
from msgspec.structs import replace

from evaluator.engine.base import Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.tolerances import NATS, RANKS, Tolerance
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import BATCH_INVARIANT, BREAKABLE
from tests.gpu.agree import cases_of, exceeded, stages
from tests.support.engines import answers
from tests.support.models import save_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # what vLLM warns of while it serves on a GPU is no failure of ours
    pytest.mark.filterwarnings("default"),
]

# Nats. Triton's attention multiplies as TF32. Twice what an H100 showed for tiny models
# in bfloat16: 0.11 / 0.023.
ALLOWED = {"float32": NATS["float32 on a GPU"], "bfloat16": Tolerance(0.22, 0.046)}
SMALL = {
    "max_model_len": 256,
    "max_num_seqs": 16,
    "kv_cache_gib": 1,
    "gpu_memory_utilization": 0.1,
}
TAKES_AND_FREES = """
import time, torch
while True:
    held = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    time.sleep(0.3)
    del held
    torch.cuda.empty_cache()
    time.sleep(0.3)
"""


@pytest.mark.parametrize(
    ("dtype", "graphs"),
    [
        ("float32", "full"),
        ("bfloat16", "full"),
        ("bfloat16", "piecewise"),
        ("bfloat16", False),
    ],
)
@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_untied", "mistral", "phi3"])
def test_engines_agree_after_swaps(architecture, dtype, graphs, tmp_path):
    if graphs == "piecewise":
        _skip_unless_first(BREAKABLE)
    one, other = (
        save_tiny_model(tmp_path / str(seed), architecture, seed, dtype=dtype)
        for seed in range(2)
    )
    ranks = RANKS["float32 on a GPU" if dtype == "float32" else "half, float32 logits"]
    config = EngineConfig(dtype=dtype, cuda_graphs=graphs, **SMALL)
    for number, (report, distances) in enumerate(
        stages(config, [one, other, one], tokens=190)
    ):
        assert (report.swapped, report.setup["runner"]) == (number > 0, "V2")
        assert exceeded(distances, ALLOWED[dtype], ranks) == []


def test_equal_runs_do_not_mix(tmp_path):
    """A step is scheduled ahead when the first run ends: what it computed must not
    reach the second."""
    engine = VLLMEngine(EngineConfig(**SMALL))
    early = tuple(range(0, 384, 8))  # an eighth of the vocabulary ends an answer
    engine.load(save_tiny_model(tmp_path / "one", "qwen3", eos_ids=early))
    asked = [
        Generate(request_id=str(n), prompt_ids=(20 + n,) * 5, max_tokens=16)
        for n in range(8)
    ]
    runs = [
        {name: each.token_ids for name, each in answers(engine, asked).items()}
        for _ in range(3)
    ]
    engine.close()
    assert runs[0] == runs[1] == runs[2]


def test_shared_gpu_keeps_shares(tmp_path):
    """Another process takes and frees 2 GiB, again and again, while the second
    engine starts."""
    checkpoint, blocks = save_tiny_model(tmp_path / "one", "qwen3"), []
    config = EngineConfig(**SMALL | {"kv_cache_gib": None}, shared_gpu=True)
    for disturbed in (False, True):
        other = subprocess.Popen(
            [sys.executable, "-c", TAKES_AND_FREES if disturbed else ""]
        )
        engine = VLLMEngine(config)
        engine.load(checkpoint)
        blocks.append(engine._started.llm.vllm_config.cache_config.num_gpu_blocks)
        engine.close()
        other.kill()
        other.wait()
    assert blocks[1] == pytest.approx(blocks[0], rel=0.02)


def test_deterministic_engine_ignores_batch(tmp_path):
    _skip_unless_first(BATCH_INVARIANT)
    engine = VLLMEngine(EngineConfig(deterministic=True, **SMALL))
    engine.load(save_tiny_model(tmp_path / "one", "qwen3", dtype="bfloat16"))
    cases = cases_of(384, 190, frozenset({0}))
    requests = [*cases.exact, *(replace(each, top_p=1.0) for each in cases.samples)]
    whole = answers(engine, requests)
    for request in requests:
        alone, beside = (
            answers(engine, [request])[request.request_id],
            whole[request.request_id],
        )
        assert (alone.token_ids, alone.logprobs) == (
            beside.token_ids,
            beside.logprobs,
        ), request.request_id
    engine.close()


def _skip_unless_first(variable):
    """vLLM reads some variables when it is imported."""
    if "vllm" in sys.modules and os.environ.get(variable) != "1":
        pytest.skip("vLLM runs in this process without it: python -m tests.gpu")
