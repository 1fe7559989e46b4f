"""What a step computes on a GPU, which CUDA graphs vLLM is asked for, and what vLLM
makes of it, without a GPU."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evaluator.checkpoints.checkpoint import Checkpoint, foreign_window
from evaluator.engine.admission import _QUEUED
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm import arguments
from evaluator.engine.vllm.arguments import FASTER_DECODE, cache_tokens, graph_arguments
from evaluator.probes.stream import ROWS
from tests.support.checkpoint_files import stated
from tests.support.engines import needs_vllm

REQUESTS, TOKENS, GIB = 200, 16_384, 2**30
KINDS = ("full", "piecewise", "decode")


def graphs_of(graphs, *, compile=False, requests=REQUESTS, tokens=TOKENS):
    return graph_arguments(graphs, compile=compile, requests=requests, tokens=tokens)


def sizes_of(graphs, **limits):
    return graphs_of(graphs, **limits)["compilation_config"]["cudagraph_capture_sizes"]


def test_graphs_are_the_default():
    assert graphs_of(None) == graphs_of(True) == graphs_of("full")
    # FlashAttention 3 schedules a graph of one token otherwise, so steps that compute
    # prompts have none
    assert {kind: sizes_of(kind)[0] for kind in KINDS} == {
        "full": 2,
        "piecewise": 1,
        "decode": 1,
    }
    assert [sizes_of(kind)[-1] for kind in KINDS] == [2048, 2048, REQUESTS]
    assert [sizes_of(kind, requests=3000)[-1] for kind in KINDS] == [3000] * 3


# Qwen3 8B
MODEL = {
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


LATENT = {"num_hidden_layers": 27, "kv_lora_rank": 512}


@pytest.mark.parametrize(
    ("model", "cache", "dtype", "per_token"),
    [
        (MODEL, "auto", "float32", 4 * 2 * 36 * 8 * 128),
        (MODEL, "auto", "bfloat16", 2 * 2 * 36 * 8 * 128),
        (MODEL, "fp8", "float32", 2 * 36 * 8 * 128),
        (MODEL, "bfloat16", "float32", 2 * 2 * 36 * 8 * 128),
        (LATENT, "auto", "bfloat16", 2 * 27 * 512),
    ],
)
def test_cache_holds_whole_blocks(model, cache, dtype, per_token):
    checkpoint = SimpleNamespace(settings=model)
    found = cache_tokens(EngineConfig(kv_cache=cache), checkpoint, dtype, 3 * GIB)
    assert found == 3 * GIB // per_token // 32 * 32


def checkpoint(dtype: str = "bfloat16", **facts: Any) -> Checkpoint:
    model = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    }
    sizes = {"bytes": 16 * 10**9, "vocabulary": 151_936, "longest": 40_960}
    read = {"config": model, "settings": model, "tensors": {}, "quantisation": None}
    return stated(dtype=dtype, **(read | sizes | facts))


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The arguments of an engine, as if vLLM were installed beside a GPU of 79 GiB."""
    platforms = ModuleType("vllm.platforms")
    platforms.current_platform = SimpleNamespace(
        get_device_total_memory=lambda: memory[0] * GIB, is_cpu=lambda: False
    )
    memory = [79]
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)

    def arguments_of(config, dtype="bfloat16", gib=79, **changes):
        memory[0] = gib
        own, positions = checkpoint(dtype, **changes), config.max_model_len
        chosen = arguments.of_device(config, own, tmp_path, positions, on_cpu=False)
        return chosen | arguments.of_runner(config, positions, own.bytes, v2=True)

    return arguments_of


@pytest.mark.parametrize(
    ("kind", "window", "is_foreign"),
    [
        *(("llama", 64, True), ("olmo2", 64, True), ("gpt_neox", 64, True)),
        *(("llama", None, False), ("llama", 0, False), ("not_known", 64, False)),
        *(("mistral", 64, False), ("qwen2", 64, False)),
    ],
)
def test_foreign_windows_are_not_used(kind, window, is_foreign):
    """vLLM would give all layers a window that their architecture does not have."""
    config = checkpoint().config | {"model_type": kind, "sliding_window": window}
    own = checkpoint(config=config)
    changed = arguments.of_device(EngineConfig(), own, Path(), 9, on_cpu=False).get(
        "hf_overrides", {}
    )
    assert ("sliding_window" in changed) is is_foreign
    assert changed.get("sliding_window") is None
    assert foreign_window(config) == (window if is_foreign else None)


@pytest.mark.parametrize(
    ("configured", "stored", "computed"),
    [
        # vLLM's "auto" would be bfloat16
        ("auto", "float32", "float32"),
        ("auto", "bfloat16", "bfloat16"),
        ("auto", "float16", "float16"),
        ("auto", "float8_e4m3fn", "auto"),  # vLLM knows how such are computed
        ("bfloat16", "float32", "bfloat16"),
    ],
)
def test_checkpoint_computes_in_own_dtype(asked, configured, stored, computed):
    assert asked(EngineConfig(dtype=configured), stored)["dtype"] == computed


def test_only_checked_files_are_read(asked):
    given = asked(EngineConfig())
    # else consolidated*.safetensors come first, then *.bin and *.pt
    assert given["load_format"] == "safetensors"
    assert given["config_format"] == "hf"  # else params.json comes first
    assert given["trust_remote_code"] is False


WEIGHTS = 16 * 10**9 / GIB
HALF = {"gpu_memory_utilization": 0.5, "shared_gpu": True}


@pytest.mark.parametrize(
    ("settings", "gib", "expected"),
    [
        ({}, 79, None),  # vLLM measures
        ({"kv_cache_gib": 4}, 79, 4),
        # 80 % of what the weights leave of this engine's part
        (HALF, 79, 0.8 * (39.5 - WEIGHTS)),
        (HALF | {"tensor_parallel": 2}, 79, 0.8 * (39.5 - WEIGHTS / 2)),
        # no room: vLLM says so
        (HALF | {"gpu_memory_utilization": 0.1}, 79, None),
        ({"kv_cache_gib": 4}, None, None),  # vLLM reads its environment
        ({"shared_gpu": True}, None, None),
    ],
)
def test_cache_of_given_size(settings, gib, expected):
    """A token takes 576 KiB (36 layers of 32 heads of 128): 1 GiB holds 1,820, of
    which 1,792 are whole blocks."""
    given = arguments.of_cache(
        EngineConfig(**settings), checkpoint(), "bfloat16", 4096, gib and gib << 30
    )
    size = given.pop("kv_cache_memory_bytes", None)
    assert (size and size / GIB) == (expected and pytest.approx(expected))
    longest = 1792 if settings == {"shared_gpu": True} else 4096
    assert given == {"max_model_len": longest}


@pytest.mark.parametrize(
    ("dtype", "head", "settings", "exact"),
    [
        ("bfloat16", {}, {}, True),  # tied to the embeddings
        ("float16", {"language_model.lm_head.weight": "F16"}, {}, True),
        ("float32", {}, {}, False),  # they are anyway
        # batch-invariant kernels would be passed by
        ("bfloat16", {}, {"deterministic": True}, False),
        ("bfloat16", {"lm_head.weight": "F8_E4M3"}, {}, False),
        ("bfloat16", {"lm_head.weight_scale": "BF16"}, {}, False),
        # tied: it may be quantised while it is loaded
        ("bfloat16", {}, {"quantised": True}, False),
        ("bfloat16", {"lm_head.weight": "BF16"}, {"quantised": True}, True),
    ],
)
def test_plain_head_has_float32_logits(asked, dtype, head, settings, exact):
    settings = dict(settings)
    dtypes = {"model.norm.weight": "BF16", **head}
    tensors = {name: SimpleNamespace(dtype=dtype) for name, dtype in dtypes.items()}
    layout: Any = SimpleNamespace() if settings.pop("quantised", False) else None
    given = asked(EngineConfig(**settings), dtype, tensors=tensors, quantisation=layout)
    assert given.get("hf_overrides") == ({"head_dtype": "float32"} if exact else None)


class TestInstalledVllm:
    pytestmark = needs_vllm

    @pytest.mark.parametrize(
        ("kind", "mode", "faster"),
        [
            ("full", "FULL", False),
            ("piecewise", "FULL_AND_PIECEWISE", True),
            ("decode", "FULL_DECODE_ONLY", True),
        ],
    )
    def test_vllm_takes_graph_arguments(self, tmp_path, kind, mode, faster):
        from vllm import EngineArgs
        from vllm.config import VllmConfig
        from vllm.config.compilation import CompilationMode

        chosen = EngineArgs(model=str(tmp_path), **graphs_of(kind)).compilation_config
        assert (chosen.mode, chosen.cudagraph_mode.name) == (CompilationMode.NONE, mode)
        assert (
            chosen.cudagraph_mode.separate_routine()
            is faster
            is (mode in FASTER_DECODE)
        )
        VllmConfig._set_cudagraph_sizes(
            SimpleNamespace(
                model_config=SimpleNamespace(enforce_eager=False),
                compilation_config=chosen,
                scheduler_config=SimpleNamespace(
                    max_num_batched_tokens=TOKENS, max_num_seqs=REQUESTS
                ),
                uniform_decode_query_len=1,
                performance_mode="balanced",
                parallel_config=SimpleNamespace(tensor_parallel_size=1),
            )
        )
        assert chosen.cudagraph_capture_sizes == sizes_of(kind)


def test_small_models_on_a_gpu_have_more_rows(asked):
    found = [
        asked(EngineConfig(**settings), bytes=gib * GIB)["max_num_seqs"]
        for gib, settings in ((6, {}), (7, {}), (6, {"max_num_seqs": 64}))
    ]
    assert found == [512, 256, 64]


def test_items_of_a_stream_fill_an_engine():
    rows = arguments._V1_REQUESTS, arguments._V2_REQUESTS, arguments._V2_REQUESTS_SMALL
    assert max(rows) + _QUEUED <= ROWS
