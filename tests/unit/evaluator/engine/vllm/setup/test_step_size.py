"""What a step computes on a GPU, for models and GPUs that are in use."""

from __future__ import annotations

import pytest

from evaluator.engine.vllm.setup.gpu import Accelerator, StepSize, cached_values, step_size

GIB = 2**30


def qwen3(hidden: int, middle: int, layers: int, heads: int, kv_heads: int = 8) -> dict[str, int]:
    return {
        "hidden_size": hidden, "intermediate_size": middle, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 128, "vocab_size": 151_936,
    }  # fmt: skip


MODELS = {
    "0.6B": (qwen3(1024, 3072, 28, 16), 1.2),
    "8B": (qwen3(4096, 12288, 36, 32), 16.4),
    "32B": (qwen3(5120, 25600, 64, 64), 65.5),
}


def chosen(model: str, memory_gib: float, *, workers: int = 1, length: int = 1088) -> StepSize:
    config, weights = MODELS[model]
    accelerator = Accelerator(memory=int(memory_gib * GIB), weights=int(weights * 1e9 / workers), utilization=0.9)
    return step_size(config, accelerator, max_model_len=length, width=2, workers=workers)


@pytest.mark.parametrize(
    ("model", "memory_gib", "expected"),
    [
        ("0.6B", 79, StepSize(16_384, 256)),
        ("8B", 79, StepSize(16_384, 256)),
        # A token takes 2 * (3 * 4096 + 3 * 12288) = 98,304 bytes: 5 % of 24 GiB hold 13,107 of them. The cache has
        # 21.6 - 15.3 - 1.5 = 4.8 GiB, and half a request of 147,456 bytes a token takes 76 MiB.
        ("8B", 24, StepSize(8_192, 64)),
        ("0.6B", 16, StepSize(16_384, 128)),
    ],
)
def test_large_where_there_is_room(model, memory_gib, expected):
    assert chosen(model, memory_gib) == expected


def test_workers_divide_the_model():
    assert chosen("32B", 79, workers=2).requests > chosen("32B", 79, workers=1).requests


def test_longer_requests_are_fewer():
    assert chosen("8B", 40).requests == 128
    assert chosen("8B", 40, length=8192).requests == 16


def test_within_bounds_where_nothing_fits_or_nothing_is_known():
    assert chosen("32B", 8) == StepSize(2_048, 16)
    nothing = Accelerator(memory=80 * GIB, weights=0, utilization=0.9)
    assert step_size({}, nothing, max_model_len=1088, width=2, workers=1) == StepSize(16_384, 256)


def test_the_sizes_of_a_text_model_count():
    config, weights = MODELS["8B"]
    accelerator = Accelerator(memory=24 * GIB, weights=int(weights * 1e9), utilization=0.9)
    whole = {"model_type": "gemma3", "text_config": config}
    assert step_size(whole, accelerator, max_model_len=1088, width=2, workers=1) == chosen("8B", 24)


def test_a_token_leaves_keys_and_values_in_layers_of_attention_only():
    config, _ = MODELS["8B"]
    assert cached_values(config) == 2 * 36 * 8 * 128
    assert cached_values(config, workers=2) == 2 * 36 * 4 * 128
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 9
    assert cached_values({"text_config": config | {"layer_types": kinds}}) == 2 * 9 * 8 * 128
