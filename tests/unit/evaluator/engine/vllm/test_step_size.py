"""What a step computes on a GPU, for models and GPUs that are in use."""

from __future__ import annotations

import pytest

from evaluator.engine.vllm.arguments import cached_values, step_size

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


def chosen(model: str, memory_gib: float, *, workers: int = 1, length: int = 1088) -> tuple[int, int]:
    config, weights = MODELS[model]
    memory = int(memory_gib * GIB)
    spare = int(0.9 * memory) - int(weights * 1e9 / workers)
    return step_size(config, memory=memory, spare=spare, max_model_len=length, width=2, workers=workers)


@pytest.mark.parametrize(
    ("model", "memory_gib", "expected"),
    [
        ("0.6B", 79, (16_384, 256)),
        ("8B", 79, (16_384, 256)),
        # A token takes 2 * (3 * 4096 + 3 * 12288) = 98,304 bytes: 5 % of 24 GiB hold 13,107 of them. The cache has
        # 21.6 - 15.3 - 1.5 = 4.8 GiB, and half a request of 147,456 bytes a token takes 76 MiB.
        ("8B", 24, (8_192, 64)),
        ("0.6B", 16, (16_384, 128)),
    ],
)
def test_large_where_there_is_room(model, memory_gib, expected):
    assert chosen(model, memory_gib) == expected


def test_workers_divide_the_model():
    assert chosen("32B", 79, workers=2)[1] > chosen("32B", 79, workers=1)[1]


def test_longer_requests_are_fewer():
    assert chosen("8B", 40)[1] == 128
    assert chosen("8B", 40, length=8192)[1] == 16


def test_within_bounds_where_nothing_fits_or_nothing_is_known():
    assert chosen("32B", 8) == (2_048, 16)
    empty = step_size({}, memory=80 * GIB, spare=72 * GIB, max_model_len=1088, width=2, workers=1)
    assert empty == (16_384, 256)


def test_the_sizes_of_a_text_model_count():
    config, weights = MODELS["8B"]
    MODELS["whole"] = ({"model_type": "gemma3", "text_config": config}, weights)
    assert chosen("whole", 24) == chosen("8B", 24)


def test_a_token_leaves_keys_and_values_in_layers_of_attention_only():
    config, _ = MODELS["8B"]
    assert cached_values(config) == 2 * 36 * 8 * 128
    assert cached_values(config, workers=2) == 2 * 36 * 4 * 128
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 9
    assert cached_values({"text_config": config | {"layer_types": kinds}}) == 2 * 9 * 8 * 128
