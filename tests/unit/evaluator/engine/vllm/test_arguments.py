"""What a step computes on a GPU, which CUDA graphs vLLM is asked for, and what vLLM
makes of it, without a GPU."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.arguments import (
    FASTER_DECODE,
    cache_tokens,
    cached_values,
    capture_sizes,
    graph_arguments,
    step_size,
)
from tests.support.engines import needs_vllm

REQUESTS, TOKENS = 200, 16_384
KINDS = ("full", "piecewise", "decode")


def arguments(graphs, *, compile=False, requests=REQUESTS, tokens=TOKENS):
    return graph_arguments(graphs, compile=compile, requests=requests, tokens=tokens)


def test_graphs_by_default_padded_little():
    """Graphs are the default padded by an eighth at most and compiling is not."""
    assert arguments(None) == arguments(True) == arguments("full")
    assert arguments(None)["compilation_config"]["mode"] == 0
    assert arguments(False) == {"enforce_eager": True}
    # vLLM's own, with graphs of its pieces
    assert arguments(None, compile=True) == {
        "enforce_eager": False,
        "compilation_config": {},
    }
    assert arguments(False, compile=True)["compilation_config"] == {
        "cudagraph_mode": "NONE"
    }
    sizes = capture_sizes(2048, 256)
    assert len(sizes) == 51
    assert sizes[0] == 1
    assert sizes[-1] == 2048
    for smaller, larger in pairwise(sizes):
        assert larger - smaller <= max(8, smaller // 8)
    # FlashAttention 3 schedules a graph of one token otherwise, so steps that compute
    # prompts have none
    least = {
        kind: arguments(kind)["compilation_config"]["cudagraph_capture_sizes"][0]
        for kind in KINDS
    }
    assert least == {"full": 2, "piecewise": 1, "decode": 1}
    assert arguments("full", requests=1, tokens=1) == {"enforce_eager": True}
    for kind in KINDS:
        assert (
            arguments(kind, requests=3000)["compilation_config"][
                "cudagraph_capture_sizes"
            ][-1]
            == 3000
        )


@pytest.mark.parametrize(
    ("most", "requests"), [(2048, 200), (60, 60), (1000, 7), (8, 3), (1, 1)]
)
def test_full_batch_and_largest_step_captured(most, requests):
    """A full batch and the largest step have graphs."""
    sizes = capture_sizes(most, requests)
    assert {most, requests} <= set(sizes)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most


GIB = 2**30


def qwen3(hidden, middle, layers, heads, kv_heads=8):
    return {
        "hidden_size": hidden, "intermediate_size": middle, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": 128, "vocab_size": 151_936,
    }  # fmt: skip


MODELS = {
    "0.6B": (qwen3(1024, 3072, 28, 16), 1.2),
    "8B": (qwen3(4096, 12288, 36, 32), 16.4),
    "32B": (qwen3(5120, 25600, 64, 64), 65.5),
}


@pytest.mark.parametrize(
    ("model", "gib", "length", "workers", "expected"),
    [
        ("8B", 79, 1088, 1, (16_384, 256)),
        # A token takes 2 * (3 * 4096 + 3 * 12288) = 98,304 bytes: 5 % of 24 GiB hold
        # 13,107 of them. The cache has 21.6 - 15.3 - 1.5 = 4.8 GiB, and half a request
        # of 147,456 bytes a token takes 76 MiB.
        ("8B", 24, 1088, 1, (8_192, 64)),
        ("0.6B", 16, 1088, 1, (16_384, 128)),
        ("8B", 40, 1088, 1, (16_384, 128)),
        ("8B", 40, 8192, 1, (16_384, 16)),
        ("32B", 8, 1088, 1, (2_048, 16)),
    ],
)
def test_step_size_follows_room(model, gib, length, workers, expected):
    config, weights = MODELS[model]
    spare = int(0.9 * gib * GIB) - int(weights * 1e9 / workers)
    for own in (config, {"model_type": "gemma3", "text_config": config}):
        assert (
            step_size(
                own,
                memory=gib * GIB,
                spare=spare,
                max_model_len=length,
                width=2,
                workers=workers,
            )
            == expected
        )


def test_only_attention_layers_cache_values():
    """A token leaves keys and values in layers of attention only."""
    config, _ = MODELS["8B"]
    assert cached_values(config) == 2 * 36 * 8 * 128
    assert cached_values(config, workers=2) == 2 * 36 * 4 * 128
    kinds = [
        "linear_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ] * 9
    assert (
        cached_values({"text_config": config | {"layer_types": kinds}})
        == 2 * 9 * 8 * 128
    )


def test_cpu_cache_holds_whole_blocks():
    checkpoint = SimpleNamespace(settings=MODELS["8B"][0])
    per_token = 2 * 36 * 8 * 128
    for cache, dtype, width in (
        ("auto", "float32", 4),
        ("auto", "bfloat16", 2),
        ("fp8", "float32", 1),
        ("bfloat16", "float32", 2),
    ):
        config = EngineConfig(kv_cache=cache)
        assert (
            cache_tokens(config, checkpoint, dtype, 3 * GIB)
            == 3 * GIB // (width * per_token) // 32 * 32
        )
    latent = SimpleNamespace(settings={"num_hidden_layers": 27, "kv_lora_rank": 512})
    assert (
        cache_tokens(EngineConfig(), latent, "bfloat16", GIB)
        == GIB // (2 * 27 * 512) // 32 * 32
    )


class TestInstalledVllm:
    pytestmark = needs_vllm

    def test_graph_kinds_are_engine_arguments(self, tmp_path):
        from vllm import EngineArgs
        from vllm.config.compilation import CompilationMode

        modes = {}
        for kind in KINDS:
            asked = arguments(kind)
            chosen = EngineArgs(model=str(tmp_path), **asked)
            assert chosen.enforce_eager is False
            assert chosen.compilation_config.mode == CompilationMode.NONE
            assert (
                sized(kind).cudagraph_capture_sizes
                == asked["compilation_config"]["cudagraph_capture_sizes"]
            )
            modes[kind] = chosen.compilation_config.cudagraph_mode.name
        assert modes == {
            "full": "FULL",
            "piecewise": "FULL_AND_PIECEWISE",
            "decode": "FULL_DECODE_ONLY",
        }
        assert set(FASTER_DECODE) == {modes["piecewise"], modes["decode"]}
        for name in FASTER_DECODE:
            assert type(sized("full").cudagraph_mode)[name].separate_routine()


def sized(kind):
    """vLLM's compilation configuration, with the sizes that it settles on."""
    from vllm.config import CompilationConfig, VllmConfig

    config = CompilationConfig(**arguments(kind)["compilation_config"])
    VllmConfig._set_cudagraph_sizes(
        SimpleNamespace(
            model_config=SimpleNamespace(enforce_eager=False),
            compilation_config=config,
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=TOKENS, max_num_seqs=REQUESTS
            ),
            uniform_decode_query_len=1,
            performance_mode="balanced",
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
    )
    return config
